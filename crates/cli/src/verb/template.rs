//! `forkd template`: make snapshots to start from.

use clap::Subcommand;
use forkd_api::CreateSnapshot;
use forkd_types::CpuModel;

use crate::console::output;
use crate::console::report::Hinted;
use crate::daemon::connect;
use crate::follow;
use crate::options::{Global, cpu_model};
use crate::start;

/// Build templates: snapshots to start from
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  forkd template build python --tag py")]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Build(Build),
}

/// Boot an image, warm it up and freeze it as a snapshot
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    forkd template build python --tag py\n  \
    forkd template build --from python:3.12-slim --tag py312\n  \
    forkd template build --from oci:./layout --tag mine\n  \
    forkd template build python --tag np --mem-size-mib 1024 --warm \"python3 -c 'import json'\"")]
struct Build {
    /// The image; see `forkd images`
    #[arg(required_unless_present = "from")]
    image: Option<String>,
    /// Use an OCI image: python:3.12-slim, HOST/NAME:TAG, NAME@sha256:HEX, oci:DIR[:TAG],
    /// oci-archive:FILE[:TAG], docker-archive:FILE[:NAME], docker-daemon:NAME. The daemon pulls
    /// it, with the credentials that `docker login` keeps for the daemon's user
    #[arg(long, value_name = "REF", conflicts_with = "image")]
    from: Option<String>,
    /// Tag of the snapshot
    #[arg(long)]
    tag: String,
    /// Guest RAM in MiB
    #[arg(long, value_name = "N", default_value_t = 512)]
    mem_size_mib: u64,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1)]
    vcpus: u32,
    /// What guests see as their processor: all of it, or a level of x86-64, which other hosts with
    /// that level have too
    #[arg(long, value_name = "MODEL", default_value_t, value_parser = cpu_model())]
    cpu: CpuModel,
    /// Run this command in the guest before the freeze; it is split as a shell does, but no shell
    /// interprets it
    #[arg(long, value_name = "CMD")]
    warm: Option<String>,
    /// Let all owners start from it; for admins
    #[arg(long)]
    shared: bool,
    /// Keep it, and what is branched from it, on this host: neither is pushed or exported
    #[arg(long)]
    private: bool,
    /// Do not wait for it; see `forkd operations`
    #[arg(long)]
    no_wait: bool,
}

pub(crate) async fn run(global: &Global, options: Options) -> anyhow::Result<()> {
    let What::Build(build) = options.what;
    let request = request(build)?;
    let client = connect::client(global).await?;
    let snapshot = if request.wait {
        follow::build(client.build_snapshot(&request).await?, &request.tag).await?
    } else {
        client.create_snapshot(&request).await?
    };
    if global.json {
        return output::json(&snapshot);
    }
    output::line(&snapshot.tag)
}

fn request(build: Build) -> anyhow::Result<CreateSnapshot> {
    let warm = shell_words::split(build.warm.as_deref().unwrap_or_default()).map_err(|error| {
        Hinted::usage(format!("--warm: {error}"), "close every quotation mark in the command")
    })?;
    let image = match build.from {
        Some(reference) => CreateSnapshot::from_reference(build.tag, start::absolute(&reference)?),
        None => CreateSnapshot::new(build.tag, build.image.unwrap_or_default()),
    };
    Ok(CreateSnapshot {
        mem_size_mib: build.mem_size_mib,
        vcpus: build.vcpus,
        cpu: (build.cpu != CpuModel::Host).then(|| build.cpu.into()),
        warm,
        wait: !build.no_wait,
        shared: build.shared,
        private: build.private,
        ..image
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(warm: Option<&str>) -> Build {
        Build {
            image: Some("python".into()),
            from: None,
            tag: "py".into(),
            mem_size_mib: 256,
            vcpus: 2,
            cpu: CpuModel::Host,
            warm: warm.map(Into::into),
            shared: false,
            private: false,
            no_wait: false,
        }
    }

    #[test]
    fn the_warm_up_is_split_as_a_shell_would() {
        let request = request(build(Some("python3 -c 'import json; print(1)'"))).unwrap();
        assert_eq!(request.warm, ["python3", "-c", "import json; print(1)"]);
        assert_eq!((request.mem_size_mib, request.vcpus), (256, 2));
    }

    #[test]
    fn a_reference_takes_the_place_of_the_image_and_its_path_is_made_absolute() {
        let from = |reference: &str| {
            let build = Build { image: None, from: Some(reference.into()), ..build(None) };
            let request = request(build).unwrap();
            assert_eq!(request.image, None);
            request.from.unwrap()
        };
        assert_eq!(from("python:3.12-slim"), "python:3.12-slim");
        assert_eq!(from("oci:/x/y:v1"), "oci:/x/y:v1");
        let here = std::env::current_dir().unwrap();
        assert_eq!(from("oci:x:v1"), format!("oci:{}/x:v1", here.display()));
    }

    #[test]
    fn no_warm_up_is_none_and_an_open_quotation_mark_is_refused() {
        assert!(request(build(None)).unwrap().warm.is_empty());
        assert!(request(build(Some("a 'b"))).is_err());
    }
}
