//! Claims about KVM: see the name of the file. They run in the KVM tier only.

mod guests_run_on_kvm_where_the_probe_finds_it;
