//! The words of all kinds of messages, in the order of their declaration.

use crate::reply::Reply;
use crate::request::Request;

impl Request {
    /// Every kind that this build knows, as written on the wire.
    pub const KINDS: &[&str] = &[
        "hello",
        "ping",
        "exec",
        "terminal",
        "resize",
        "input",
        "credit",
        "kill",
        "cancel",
        "list_kept",
        "follow",
        "forget",
        "eval",
        "make_context",
        "list_contexts",
        "end_context",
        "set_clock",
        "read_file",
        "write_file",
        "list_files",
        "stat_file",
        "remove_file",
        "make_directory",
        "watch_files",
        "keep_watch",
        "take_changes",
        "end_watch",
        "ask_usage",
        "list_ports",
        "open_port",
        "renew",
        "power_off",
    ];
}

impl Reply {
    /// Every kind that this build knows, as written on the wire.
    pub const KINDS: &[&str] = &[
        "welcome",
        "pong",
        "started",
        "kept",
        "followed",
        "stdout",
        "stderr",
        "credit",
        "exited",
        "cell_started",
        "contexts",
        "eval_part",
        "eval_done",
        "file_data",
        "file_end",
        "written",
        "entry",
        "done",
        "watching",
        "change",
        "kept_watch",
        "usage",
        "port",
        "port_opened",
        "identity_in_effect",
        "renewed",
        "powering_off",
        "error",
    ];
}
