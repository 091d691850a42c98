xtask := cargo run -q --locked -p xtask --profile dev --

.PHONY: demo test lint images build setup
demo: ; @$(xtask) demo
test: ; @$(xtask) test
lint: ; @$(xtask) lint
images: ; @$(xtask) images
build: ; @$(xtask) build
setup: ; @$(xtask) setup
