xtask := cargo run -q --locked -p xtask --profile dev --

.PHONY: demo test test-kvm lint images build setup
demo: ; @$(xtask) demo
test: ; @$(xtask) test
test-kvm: ; @$(xtask) test kvm
lint: ; @$(xtask) lint
images: ; @$(xtask) images
build: ; @$(xtask) build
setup: ; @$(xtask) setup
