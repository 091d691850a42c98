//! Whether programs that use E2B's clients would get through: a round through the daemon's listener
//! for them, told of it by what `forkd e2b env` prints and by nothing else.
//!
//! ```text
//! key and list -> names of templates -> the way to a sandbox
//! ```
//!
//! Guarantees: no sandbox is made, woken or changed. What fails is said with its remedy; what comes
//! after it is not tried.
//!
//! Does not do: make a sandbox. The guest of the other checks shows that one can be made.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;

use forkd_client::{ClientError, ForeignClient, Heard};
use forkd_daemon::doctor::Check;
use forkd_daemon::{E2bConfig, ServeConfig};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

const NAME: &str = "E2B";
/// What E2B's packages ask for by themselves.
const BY_THEMSELVES: [&str; 2] = ["base", "code-interpreter-v1"];
/// Where the agent of a sandbox is reached.
const AGENT_PORT: &str = "49983";
/// What has the form of a sandbox's id. Where there is one, the daemon says that it has none.
const NOBODY: &str = "sb000000000000";

/// What there is to say of E2B's interfaces where a daemon runs here, or does not.
pub(super) async fn check(config: &ServeConfig, daemon_runs: bool) -> Check {
    let file = forkd_daemon::e2b_environment_file(&config.state_dir);
    let said = match std::fs::read_to_string(&file) {
        // One that was killed has left it.
        _ if !daemon_runs => return expected(config.e2b.as_ref()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match &config.e2b {
                None => off(),
                Some(e2b) => {
                    let detail = format!(
                        "the daemon that runs does not listen at {}: it was started without",
                        e2b.listen
                    );
                    let remedy = "`forkd stop`; the next command starts one that has heard \
                                  FORKD_E2B_LISTEN, and sandboxes go on";
                    Check::warn(NAME, detail, remedy)
                }
            };
        }
        Err(error) => {
            let detail = format!("cannot read `{}`: {error}", file.display());
            return Check::warn(NAME, detail, "ask as the user who runs the daemon");
        }
        Ok(said) => said,
    };
    let aliases = forkd_daemon::e2b_aliases(&config.state_dir).all().unwrap_or_default();
    let given = config.e2b.iter().flat_map(|e2b| e2b.templates.keys().cloned());
    let names = aliases.into_keys().chain(given).collect();
    match ForeignClient::new() {
        Ok(client) => match Round::told(&said, client) {
            Some(round) => round.go(names).await.unwrap_or_else(|wrong| wrong),
            None => {
                let detail = format!("`{}` does not say where it listens", file.display());
                Check::warn(NAME, detail, "`forkd stop`, then start the daemon again")
            }
        },
        Err(error) => Check::warn(NAME, with_causes(error), "look at this host's TLS"),
    }
}

fn off() -> Check {
    Check::ok(
        NAME,
        "off; `forkd serve --e2b-listen 127.0.0.1:8891`, or FORKD_E2B_LISTEN for a daemon that \
         starts by itself, answers programs that use E2B's clients",
    )
}

/// What a daemon that is yet to start would find. One that other commands start has no TLS.
fn expected(config: Option<&E2bConfig>) -> Check {
    let Some(E2bConfig { listen, .. }) = config else { return off() };
    if !listen.ip().is_loopback() {
        let detail = format!("{listen} is no loopback address, and there a listener needs TLS");
        let remedy = "start the daemon yourself: `forkd serve --tls-cert FILE --tls-key FILE`";
        return Check::warn(NAME, detail, remedy);
    }
    match TcpListener::bind(listen) {
        Ok(_) => Check::ok(NAME, format!("the daemon that starts next listens at {listen}")),
        Err(error) => {
            let remedy = "end what listens there, or give FORKD_E2B_LISTEN another port";
            Check::fail(NAME, format!("no daemon could listen at {listen}: {error}"), remedy)
        }
    }
}

fn with_causes(error: ClientError) -> String {
    format!("{:#}", anyhow::Error::new(error))
}

/// What a shell is told, and who asks.
struct Round {
    client: ForeignClient,
    api_url: String,
    api_key: String,
    /// Where all sandboxes are reached; else each has names below the domain.
    sandbox_url: Option<String>,
    domain: Option<String>,
}

impl Round {
    /// From the lines for a shell.
    fn told(lines: &str, client: ForeignClient) -> Option<Self> {
        let variables =
            lines.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
        let variables: BTreeMap<&str, &str> = variables.collect();
        let value = |name: &str| variables.get(name).map(|value| (*value).to_owned());
        let (sandbox_url, domain) = (value("E2B_SANDBOX_URL"), value("E2B_DOMAIN"));
        (sandbox_url.is_some() || domain.is_some()).then_some(())?;
        let (api_url, api_key) = (value("E2B_API_URL")?, value("E2B_API_KEY")?);
        Some(Self { client, api_url, api_key, sandbox_url, domain })
    }

    /// All of it, up to what is wrong.
    async fn go(&self, names: BTreeSet<String>) -> Result<Check, Check> {
        let running = self.list().await?;
        let found = self.templates(names).await?;
        self.reach(running.as_deref()).await?;
        let detail = format!("a client's round works at {}; templates: {found}", self.api_url);
        Ok(Check::ok(NAME, detail))
    }

    /// The key opens the list. A sandbox that runs, if there is one.
    async fn list(&self) -> Result<Option<String>, Check> {
        let url = format!("{}/v2/sandboxes?state=running&limit=1", self.api_url);
        let heard = self.control(&url).await?;
        if heard.status != 200 {
            return Err(self.strange(&url, &heard));
        }
        let list: Value = serde_json::from_str(&heard.body).unwrap_or_default();
        let Some(list) = list.as_array() else { return Err(self.strange(&url, &heard)) };
        Ok(list.first().and_then(|one| Some(one["sandboxID"].as_str()?.to_owned())))
    }

    /// Names that were given to templates lead somewhere, and one of those that packages ask for by
    /// themselves. Returns those that do.
    async fn templates(&self, given: BTreeSet<String>) -> Result<String, Check> {
        let (mut found, mut lost) = (Vec::new(), Vec::new());
        let by_themselves = BY_THEMSELVES.iter().map(|name| (*name).to_owned());
        let asked: BTreeSet<String> = by_themselves.chain(given.iter().cloned()).collect();
        for name in asked {
            let part = utf8_percent_encode(&name, NON_ALPHANUMERIC);
            let url = format!("{}/templates/aliases/{part}", self.api_url);
            let heard = self.control(&url).await?;
            match heard.status {
                200 => found.push(name),
                404 if given.contains(&name) => lost.push(name),
                404 => {}
                _ => return Err(self.strange(&url, &heard)),
            }
        }
        let remedy = |name: &str| {
            format!(
                "`forkd template build IMAGE --tag TAG`, then `forkd e2b alias {name}=TAG`; \
                 `forkd snapshots` lists tags"
            )
        };
        if let Some(name) = lost.first() {
            let detail = format!("no snapshot for the template's name {}", lost.join(", "));
            return Err(Check::warn(NAME, detail, remedy(name)));
        }
        if found.is_empty() {
            let detail = format!(
                "it answers at {}, but programs ask for the templates {}, and there is none",
                self.api_url,
                BY_THEMSELVES.join(" and ")
            );
            return Err(Check::warn(NAME, detail, remedy(BY_THEMSELVES[0])));
        }
        Ok(found.join(", "))
    }

    /// A request for the agent of a sandbox comes to the daemon.
    async fn reach(&self, running: Option<&str>) -> Result<(), Check> {
        let id = running.unwrap_or(NOBODY);
        let url = match (&self.sandbox_url, &self.domain) {
            (Some(url), _) => format!("{url}/health"),
            (None, domain) => {
                let domain = domain.as_deref().unwrap_or_default();
                format!("https://{AGENT_PORT}-{id}.{domain}/health")
            }
        };
        let headers = match &self.sandbox_url {
            Some(_) => vec![("E2b-Sandbox-Id", id), ("E2b-Sandbox-Port", AGENT_PORT)],
            None => Vec::new(),
        };
        let heard = self.client.get(&url, &headers).await.map_err(|it| self.unheard(it))?;
        // It may have ended since the list.
        let is_gone = heard.status == 502 && heard.body.contains("The sandbox was not found");
        match heard.status == 204 && running.is_some() || is_gone {
            true => Ok(()),
            false => Err(self.strange(&url, &heard)),
        }
    }

    async fn control(&self, url: &str) -> Result<Heard, Check> {
        let asked = self.client.get(url, &[("X-API-KEY", &self.api_key)]).await;
        asked.map_err(|error| self.unheard(error))
    }

    /// Nothing was heard. Where a name is in between, this host may be the only one that does not
    /// know it.
    fn unheard(&self, error: ClientError) -> Check {
        let detail = with_causes(error);
        match &self.domain {
            None => {
                let remedy = "look at the daemon's log; `forkd stop`, then start it again";
                Check::fail(NAME, detail, remedy)
            }
            Some(domain) => {
                let name = domain.split(':').next().unwrap_or_default();
                let remedy = format!(
                    "let the names *.{name} lead to the daemon, with a certificate for them; if a \
                     CA of your own has signed it, tell clients of it: SSL_CERT_FILE, \
                     NODE_EXTRA_CA_CERTS"
                );
                Check::warn(NAME, detail, remedy)
            }
        }
    }

    /// Something answers, and not as the daemon would.
    fn strange(&self, url: &str, heard: &Heard) -> Check {
        let body: String = heard.body.chars().take(120).collect();
        let detail = format!("{url} answers {}: {body}", heard.status);
        let remedy = match (heard.status, &self.domain) {
            (401, _) => "another daemon answers there: `forkd stop`, then start this one again",
            (_, Some(_)) => {
                "let the proxy pass all requests on to the daemon, with the host that was asked for"
            }
            (_, None) => "something else answers there: give FORKD_E2B_LISTEN another port",
        };
        match self.domain {
            Some(_) => Check::warn(NAME, detail, remedy),
            None => Check::fail(NAME, detail, remedy),
        }
    }
}

#[cfg(test)]
mod tests {
    use forkd_daemon::doctor::Outcome;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const RUNS: &str = "sb0123456789ab";

    /// What a listener answers a request with: a status and a body.
    type Says = fn(&str) -> (u16, String);

    /// Answers as the daemon does, with one sandbox and the template `base`.
    fn daemon(head: &str) -> (u16, String) {
        let has = |line: &str| head.to_ascii_lowercase().contains(line);
        match head.split(' ').nth(1).unwrap() {
            path if path != "/health" && !has("x-api-key: e2b_00\r\n") => (401, "{}".to_owned()),
            "/v2/sandboxes?state=running&limit=1" => {
                (200, format!(r#"[{{"sandboxID":"{RUNS}"}}]"#))
            }
            "/templates/aliases/base" => (200, "{}".to_owned()),
            "/health" if has("e2b-sandbox-port: 49983\r\n") && has(RUNS) => (204, String::new()),
            "/health" => (400, "{}".to_owned()),
            _ => (404, "{}".to_owned()),
        }
    }

    async fn serve(listener: tokio::net::TcpListener, says: Says) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let (status, body) = says(std::str::from_utf8(&head).unwrap());
            let length = if status == 204 {
                String::new()
            } else {
                format!("Content-Length: {}\r\n", body.len())
            };
            let answer = format!("HTTP/1.1 {status} X\r\nConnection: close\r\n{length}\r\n{body}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    /// A round through a listener that answers so, for programs that are given these names.
    async fn round(says: Says, names: &[&str]) -> Check {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let lines = format!(
            "export E2B_API_URL={url}\nexport E2B_SANDBOX_URL={url}\nexport E2B_API_KEY=e2b_00\n"
        );
        let round = Round::told(&lines, ForeignClient::new().unwrap()).unwrap();
        let server = tokio::spawn(serve(listener, says));
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let check = round.go(names).await.unwrap_or_else(|wrong| wrong);
        server.abort();
        check
    }

    #[tokio::test]
    async fn each_step_of_a_round_that_fails_is_named_with_its_remedy() {
        fn another_key(_: &str) -> (u16, String) {
            (401, "{}".to_owned())
        }
        fn something_else(_: &str) -> (u16, String) {
            (200, "<html>".to_owned())
        }
        fn no_template(head: &str) -> (u16, String) {
            if head.contains("/aliases/") { (404, String::new()) } else { daemon(head) }
        }
        fn no_way_to_sandboxes(head: &str) -> (u16, String) {
            if head.contains("/health") { (404, "lost".to_owned()) } else { daemon(head) }
        }
        fn ended_since(head: &str) -> (u16, String) {
            let gone = r#"{"message":"The sandbox was not found"}"#.to_owned();
            if head.contains("/health") { (502, gone) } else { daemon(head) }
        }
        let good: (Says, &[&str]) = (daemon, &["base"]);
        for ((says, names), outcome, words, remedy) in [
            (good, Outcome::Ok, "templates: base", ""),
            ((ended_since, &[]), Outcome::Ok, "templates: base", ""),
            ((daemon, &["base", "a b"]), Outcome::Warn, "name a b", "alias a b=TAG"),
            ((no_template, &[]), Outcome::Warn, "code-interpreter-v1", "alias base=TAG"),
            ((another_key, &[]), Outcome::Fail, "401", "another daemon"),
            ((something_else, &[]), Outcome::Fail, "<html>", "another port"),
            ((no_way_to_sandboxes, &[]), Outcome::Fail, "/health answers 404: lost", "else"),
        ] {
            let check = round(says, names).await;
            assert_eq!(check.outcome, outcome, "{check:?}");
            assert!(check.detail.contains(words), "{words}: {check:?}");
            assert!(check.remedy.as_deref().unwrap_or_default().contains(remedy), "{check:?}");
        }
    }

    #[tokio::test]
    async fn nobody_who_answers_fails_and_a_domain_that_is_not_known_here_warns() {
        let client = || ForeignClient::new().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let lines = format!(
            "export E2B_API_URL=http://{free}\nexport E2B_SANDBOX_URL=http://{free}\n\
             export E2B_API_KEY=k\n"
        );
        let round = Round::told(&lines, client()).unwrap();
        let check = round.go(BTreeSet::new()).await.unwrap_err();
        assert_eq!(check.outcome, Outcome::Fail, "{check:?}");
        let lines = "export E2B_DOMAIN=d.invalid:7\nexport E2B_API_URL=https://api.d.invalid:7\n\
                     export E2B_API_KEY=k\n";
        let round = Round::told(lines, client()).unwrap();
        let check = round.go(BTreeSet::new()).await.unwrap_err();
        assert_eq!(check.outcome, Outcome::Warn, "{check:?}");
        assert!(check.remedy.unwrap().contains("*.d.invalid lead"));
        assert!(Round::told("export E2B_API_KEY=k", client()).is_none());
    }

    #[test]
    fn what_a_daemon_would_find_is_told_before_it_starts() {
        let of = |listen: std::net::SocketAddr| {
            expected(Some(&E2bConfig { listen, templates: BTreeMap::new(), domain: None }))
        };
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let check = of(taken.local_addr().unwrap());
        assert!(check.outcome == Outcome::Fail && check.remedy.is_some(), "{check:?}");
        assert_eq!(of("127.0.0.1:0".parse().unwrap()).outcome, Outcome::Ok);
        assert_eq!(of("0.0.0.0:1".parse().unwrap()).outcome, Outcome::Warn);
        assert!(expected(None).detail.contains("--e2b-listen"));
    }
}
