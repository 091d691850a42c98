//! What the daemon's metrics say of VMMs that stand by, for `forkd top` and `forkd doctor`.

use forkd_types::{Named as _, StandbyStatus};
use serde_json::{Value, json};

use crate::samples::{Sample, Samples};

const VMMS: &str = "forkd_standby_vmms";

/// Whether there are as many as should be, or why not; nothing where the daemon does not say.
pub(crate) fn status(samples: &Samples) -> Option<StandbyStatus> {
    let holds = |sample: &&Sample| sample.name == "forkd_standby_status" && sample.value > 0.0;
    StandbyStatus::from_name(samples.iter().find(holds)?.labels.get("status")?)
}

/// All of it in one line.
pub(crate) fn line(samples: &Samples) -> String {
    let Some(status) = status(samples) else { return "not known".to_owned() };
    let kinds = kinds(samples).map(|sample| {
        let label = |name: &str| sample.labels.get(name).map_or("?", String::as_str);
        let vcpus = match label("vcpus") {
            "1" => "1 vCPU".to_owned(),
            more => format!("{more} vCPUs"),
        };
        format!(
            "{} {} with {} MiB and {vcpus}",
            sample.value,
            label("image"),
            label("mem_size_mib")
        )
    });
    let kinds: Vec<String> = kinds.collect();
    let (ready, places) = (samples.count(VMMS, None), samples.count("forkd_standby_places", None));
    let why = match status {
        StandbyStatus::Full => None,
        StandbyStatus::Off => Some("the daemon was started with --standby 0"),
        StandbyStatus::NoDemand => Some("no sandbox was started in the last 10 minutes"),
        StandbyStatus::Starting => Some("more are being started"),
        StandbyStatus::Busy => Some("more are started when no start and no branch is under way"),
        StandbyStatus::ShortOfMemory => Some("the host has too little memory left"),
        StandbyStatus::Failed => Some("the last one could not be started"),
    };
    let mut line = format!("{ready} of {places}");
    for (before, text) in
        [(": ", Some(kinds.join(", ")).filter(|it| !it.is_empty())), ("; ", why.map(str::to_owned))]
    {
        if let Some(text) = text {
            line.push_str(before);
            line.push_str(&text);
        }
    }
    line
}

/// The same for programs.
pub(crate) fn as_json(samples: &Samples) -> Value {
    let kinds = kinds(samples).map(|sample| {
        let number = |name: &str| -> Option<u64> { sample.labels.get(name)?.parse().ok() };
        json!({
            "image": sample.labels.get("image"),
            "mem_size_mib": number("mem_size_mib"),
            "vcpus": number("vcpus"),
            "count": sample.count(),
        })
    });
    json!({
        "status": status(samples).map(StandbyStatus::name),
        "places": samples.count("forkd_standby_places", None),
        "vmms": kinds.collect::<Vec<_>>(),
    })
}

fn kinds(samples: &Samples) -> impl Iterator<Item = &Sample> {
    samples.iter().filter(|sample| sample.name == VMMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(status: &str, kinds: &[(&str, u32)]) -> Samples {
        let mut text = format!(
            "forkd_standby_places 4\nforkd_standby_status{{status=\"{status}\"}} 1\n\
             forkd_standby_status{{status=\"other\"}} 0\n"
        );
        for (image, count) in kinds {
            let labels = format!("image=\"{image}\",mem_size_mib=\"512\",vcpus=\"{count}\"");
            text.push_str(&format!("forkd_standby_vmms{{{labels}}} {count}\n"));
        }
        Samples::parse(&text)
    }

    #[test]
    fn the_line_tells_how_many_of_what_and_why_not_more() {
        assert_eq!(
            line(&samples("full", &[("a", 1), ("b", 3)])),
            "4 of 4: 1 a with 512 MiB and 1 vCPU, 3 b with 512 MiB and 3 vCPUs"
        );
        assert_eq!(line(&samples("starting", &[])), "0 of 4; more are being started");
        assert_eq!(line(&Samples::default()), "not known");
        let mut lines: Vec<_> =
            StandbyStatus::ALL.map(|status| line(&samples(status.name(), &[]))).into();
        lines.dedup();
        assert_eq!(lines.len(), StandbyStatus::ALL.len(), "{lines:?}");
    }

    #[test]
    fn programs_get_the_same() {
        let json = as_json(&samples("busy", &[("a", 2)]));
        assert_eq!((&json["status"], &json["places"]), (&json!("busy"), &json!(4)));
        let kind = json!({ "image": "a", "mem_size_mib": 512, "vcpus": 2, "count": 2 });
        assert_eq!(json["vmms"], json!([kind]));
    }
}
