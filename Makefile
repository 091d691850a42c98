xtask := cargo run -q --locked -p xtask --profile dev --

.PHONY: demo test test-kvm lint prove crash images build setup
demo: ; @$(xtask) demo
test: ; @$(xtask) test
test-kvm: ; @$(xtask) test kvm
lint: ; @$(xtask) lint
prove: ; @$(xtask) prove $(if $(N),--branches $(N)) $(if $(SEED),--seed $(SEED))
crash: ; @$(xtask) crash $(if $(N),--crashes $(N)) $(if $(SEED),--seed $(SEED))
images: ; @$(xtask) images
build: ; @$(xtask) build
setup: ; @$(xtask) setup
