//! Goal: a guest whose kernel panics takes its agent and its VMM with it: the sandbox is `dead`
//! with a reason, its console is kept, a branch of it is refused, and nothing is left when it is
//! removed.
//!
//! Method: the guest is told to panic. Breaks when the end of the VMM is missed, or a request waits
//! without end.

use forkd_testkit::{Lab, SOON, block_on};
use forkd_types::SandboxState;

use crate::scene::ALONE;

#[test]
fn a_guest_whose_kernel_panics_is_dead_and_leaves_nothing() {
    block_on(async {
        let _alone = ALONE.lock().await;
        let lab = Lab::new().await;
        let source = lab.tiny().await;
        lab.wait_durable(&"tiny-128".parse().unwrap()).await;
        let panic = source.try_sh("echo c > /proc/sysrq-trigger");
        let panic = tokio::time::timeout(SOON, panic).await;
        assert!(panic.expect("the request ends").is_err());
        lab.wait_state(&source.id, SandboxState::Dead).await;
        let console = lab.engine.console_log(&source.id).unwrap();
        let console = String::from_utf8_lossy(&console.bytes).into_owned();
        assert!(
            console.contains("Kernel panic - not syncing: sysrq"),
            "its last words are kept: {console}"
        );
        let error = source.try_branch_as(&"late".parse().unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("is dead: its VMM ended"), "{error}");
        source.remove().await;
        assert_eq!(lab.vmm_count(), 0);
        assert_eq!(lab.leftovers(), Vec::<std::path::PathBuf>::new());
    });
}
