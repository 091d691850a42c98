//! Goal: a child whose guest agent does not confirm its renewal is destroyed, never handed out.
//!
//! Method: the kernel of the source is made to panic and stay so. A branch of it still works; its
//! child cannot answer, and must be gone with its VMM. Breaks when a child is handed out before it
//! confirmed.

use forkd_engine::EngineError;
use forkd_testkit::{Lab, block_on};

#[test]
fn a_child_that_does_not_confirm_is_never_seen_and_leaves_no_process() {
    let _turn = crate::one_at_a_time();
    block_on(async {
        let lab = Lab::new().await;
        let source = lab.tiny().await;
        source.sh("echo 0 > /proc/sys/kernel/panic").await;
        source.spawn("sleep 0.3; echo c > /proc/sysrq-trigger").await;
        lab.wait_until("the guest's kernel panics", || {
            let console = lab.engine.console_log(&source.id).unwrap();
            String::from_utf8_lossy(&console.bytes).contains("end Kernel panic")
        })
        .await;
        let snapshot = source.branch().await;
        let error = lab.engine.fork(&snapshot.tag, 1).await.unwrap_err();
        assert!(matches!(error, EngineError::RenewalNotConfirmed { .. }), "{error}");
        assert!(error.to_string().contains(&snapshot.tag.to_string()), "{error}");
        let left: Vec<_> = lab.engine.sandboxes().into_iter().map(|s| s.id).collect();
        assert_eq!(left, std::slice::from_ref(&source.id), "only the source is left");
        assert_eq!(lab.vmm_count(), 1, "and only its process");
    });
}
