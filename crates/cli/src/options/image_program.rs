//! What an OCI image runs: its entrypoint and its command, as `docker run` reads them.

use forkd_client::{Client, ClientError};
use serde::Deserialize;

/// Where the image says so in a sandbox; one that was made from a recipe does not.
const FILE: &str = "/etc/forkd/image.json";

/// The part of the image's configuration that is about arguments.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct ImageProgram {
    entrypoint: Vec<String>,
    cmd: Vec<String>,
}

impl ImageProgram {
    /// Of a sandbox's image.
    pub(crate) async fn of(client: &Client, sandbox: &str) -> Result<Self, ClientError> {
        match client.read_file(sandbox, FILE).await {
            // The guest may have written anything there.
            Ok(text) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
            Err(ClientError::Api(failure)) if failure.code == "file_not_found" => {
                Ok(Self::default())
            }
            Err(error) => Err(error),
        }
    }

    /// What is run when `args` were given; nothing when neither they nor the image say it.
    pub(crate) fn arguments(self, args: &[String]) -> Vec<String> {
        let rest = if args.is_empty() { self.cmd } else { args.to_vec() };
        self.entrypoint.into_iter().chain(rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_replace_the_command_and_follow_the_entrypoint() {
        let run = |entrypoint: &[&str], cmd: &[&str], args: &[&str]| {
            let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
            let args: Vec<String> = own(args);
            let program = ImageProgram { entrypoint: own(entrypoint), cmd: own(cmd) };
            program.arguments(&args).join(" ")
        };
        assert_eq!(run(&["e"], &["c"], &[]), "e c");
        assert_eq!(run(&["e"], &["c"], &["a", "b"]), "e a b");
        assert_eq!(run(&[], &["c"], &[]), "c");
        assert_eq!(run(&[], &["c"], &["a"]), "a");
        assert_eq!(run(&[], &[], &[]), "");
    }

    /// What images of Docker Hub say of themselves, as their documentation and Dockerfiles have it,
    /// and what `docker run IMAGE` and `docker run IMAGE bash -l` then run.
    const WELL_KNOWN: [(&str, &str, &str); 5] = [
        (r#"{"Entrypoint":[],"Cmd":["python3"]}"#, "python3", "bash -l"),
        (
            r#"{"Entrypoint":["docker-entrypoint.sh"],"Cmd":["node"]}"#,
            "docker-entrypoint.sh node",
            "docker-entrypoint.sh bash -l",
        ),
        (
            r#"{"Entrypoint":["docker-entrypoint.sh"],"Cmd":["postgres"],"StopSignal":"SIGINT"}"#,
            "docker-entrypoint.sh postgres",
            "docker-entrypoint.sh bash -l",
        ),
        (
            r#"{"Entrypoint":["docker-entrypoint.sh"],"Cmd":["redis-server"]}"#,
            "docker-entrypoint.sh redis-server",
            "docker-entrypoint.sh bash -l",
        ),
        (
            r#"{"Entrypoint":["/docker-entrypoint.sh"],"Cmd":["nginx","-g","daemon off;"]}"#,
            "/docker-entrypoint.sh nginx -g daemon off;",
            "/docker-entrypoint.sh bash -l",
        ),
    ];

    #[test]
    fn well_known_images_run_what_docker_run_runs() {
        for (config, alone, with_arguments) in WELL_KNOWN {
            let run = |args: &[&str]| {
                let args: Vec<String> = args.iter().map(|word| (*word).to_owned()).collect();
                let program: ImageProgram = serde_json::from_str(config).unwrap();
                program.arguments(&args).join(" ")
            };
            assert_eq!(run(&[]), alone, "{config}");
            assert_eq!(run(&["bash", "-l"]), with_arguments, "{config}");
        }
    }
}
