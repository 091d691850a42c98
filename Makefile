xtask := sh crates/xtask/xtask.sh

.PHONY: demo test test-kvm test-debian13 conformance lint prove crash fuzz count bench results images build generate setup
demo: ; @$(xtask) demo
test: ; @$(xtask) test
test-kvm: ; @$(xtask) test kvm
test-debian13: ; @$(xtask) test debian13 $(addprefix --program ,$(PROGRAMS)) $(if $(TESTS),-- $(TESTS))
conformance: ; @$(xtask) conformance
lint: ; @$(xtask) lint
prove: ; @$(xtask) prove $(if $(N),--branches $(N)) $(if $(SEED),--seed $(SEED))
crash: ; @$(xtask) crash $(if $(N),--crashes $(N)) $(if $(SEED),--seed $(SEED))
fuzz: ; @$(xtask) fuzz $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(TARGETS)
count: ; @$(xtask) count $(if $(DEBIAN13),--debian13) $(if $(CHECK),--check) $(if $(WRITE),--write) $(if $(MIB),--mem-size-mib $(MIB))
bench: ; @$(xtask) bench $(if $(QUICK),--quick) $(if $(AGAIN),--again) $(TABLES)
results: ; @$(xtask) results $(if $(CHECK),--check)
images: ; @$(xtask) images
build: ; @$(xtask) build
generate: ; @$(xtask) generate $(if $(CHECK),--check)
setup: ; @$(xtask) setup
