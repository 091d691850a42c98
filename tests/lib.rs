//! System tests: real QEMU, real guests. Each file is named by its claim.
