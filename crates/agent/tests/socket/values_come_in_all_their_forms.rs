//! Goal: the value of Python code comes in every form that it has, whole, and nothing that a value
//! does keeps the answer from coming. Method: the real agent and interpreter with values that
//! behave well and others. What would break it: parts that are larger than a window of credit, a
//! form that raises, an object that claims to have every form.

use std::time::Duration;

use crate::raw::Raw;
use crate::support::{LocalAgent, SOON};
use forkd_engine::guest::{EVAL_PARTS_BYTES_MAX, EvalOutput, EvalRequest, GuestAgent};
use forkd_protocol::{Reply, Request};

const CLASSES: &str = r#"
import base64
class Rich:
    def __init__(self, size=3): self.size = size
    def __repr__(self): return 'rich'
    def _repr_html_(self): return '<b>é</b>'
    def _repr_png_(self): return b'\x89PNG' + bytes(self.size)
    def _repr_json_(self): return {'a': [1]}
    def _repr_svg_(self): return '<svg/>', {'width': 1}
    def _repr_markdown_(self): return None
    def _repr_latex_(self): raise ValueError('no')
class Bundle:
    def __repr__(self): return 'bundle'
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {'text/plain': 'other', 'image/png': base64.b64encode(b'\xff').decode(),
            'application/x-thing+json': {}, 'bad type': 'x', 7: 'x', 'text/x': object()}
    def _repr_html_(self): return '<i>'
class Everything:
    def __getattr__(self, name): return lambda *a, **k: 'anything'
    def __repr__(self): return 'everything'
class Stops:
    def __repr__(self): return 'stops'
    def _repr_html_(self):
        while True: pass
"#;

async fn eval(agent: &GuestAgent, code: &str) -> EvalOutput {
    let request = EvalRequest { code: code.to_owned(), timeout: SOON };
    agent.eval(request).await.unwrap()
}

/// Types and contents of a value's forms.
async fn forms(agent: &GuestAgent, code: &str) -> Vec<(String, Vec<u8>)> {
    let output = eval(agent, code).await;
    assert_eq!(output.error, None);
    output.parts.into_iter().map(|part| (part.mime, part.data)).collect()
}

fn expected(forms: &[(&str, &[u8])]) -> Vec<(String, Vec<u8>)> {
    forms.iter().map(|(mime, data)| ((*mime).to_owned(), data.to_vec())).collect()
}

#[tokio::test]
async fn a_value_comes_in_every_form_that_it_has_and_no_other() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    assert_eq!(eval(&agent, CLASSES).await.parts, []);
    assert_eq!(forms(&agent, "1 + 1").await, expected(&[("text/plain", b"2")]));
    let rich = expected(&[
        ("text/plain", b"rich"),
        ("text/html", "<b>é</b>".as_bytes()),
        ("image/svg+xml", b"<svg/>"),
        ("image/png", b"\x89PNG\0\0\0"),
        ("application/json", br#"{"a": [1]}"#),
    ]);
    assert_eq!(forms(&agent, "Rich()").await, rich);
    let bundle = expected(&[
        ("text/plain", b"bundle"),
        ("image/png", b"\xff"),
        ("application/x-thing+json", b"{}"),
        ("text/html", b"<i>"),
    ]);
    assert_eq!(forms(&agent, "Bundle()").await, bundle);
    assert_eq!(forms(&agent, "Everything()").await, expected(&[("text/plain", b"everything")]));
    assert_eq!(forms(&agent, "Rich").await.len(), 1, "a class has none of its instances' forms");
    assert_eq!(forms(&agent, "None").await, []);
    let failed = eval(&agent, "1 / 0").await;
    assert!(failed.error.is_some() && failed.parts.is_empty());
}

#[tokio::test]
async fn large_forms_come_whole_and_too_large_ones_are_left_out() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    eval(&agent, CLASSES).await;
    let whole = forms(&agent, "print('x' * 300000); Rich(3_000_000)").await;
    let png = whole.iter().find(|(mime, _)| mime == "image/png").unwrap();
    assert_eq!(png.1.len(), 3_000_004);
    assert_eq!(whole.len(), 5);
    let size = EVAL_PARTS_BYTES_MAX;
    let without = forms(&agent, &format!("Rich({size})")).await;
    assert!(without.len() == 4 && without.iter().all(|(mime, _)| mime != "image/png"));
    assert_eq!(forms(&agent, "'y' * 9000000").await[0].1.len(), 100 * 1024 + 3);
}

#[tokio::test]
async fn a_form_that_takes_for_ever_is_interrupted_and_the_state_is_kept() {
    let local = LocalAgent::start();
    let agent = local.greet().await;
    eval(&agent, CLASSES).await;
    let timeout = Duration::from_millis(500);
    let output = agent.eval(EvalRequest { code: "Stops()".into(), timeout }).await.unwrap();
    assert!(output.timed_out && output.error.is_some() && !output.state_lost, "{output:?}");
    assert_eq!(eval(&agent, "Rich()").await.result.as_deref(), Some("rich"));
}

#[tokio::test]
async fn no_more_of_a_form_is_sent_than_the_host_allows_nor_is_it_polled_for() {
    let local = LocalAgent::start();
    let mut raw = Raw::new(local.stream().await);
    raw.hello(1).await;
    let code = format!("{CLASSES}\nRich(200_000)");
    let request = Request::Eval {
        code,
        timeout_ms: None,
        output_credit: 2000,
        parts: true,
        displays: false,
        context: None,
        env: Vec::new(),
    };
    raw.ask(2, &request).await;
    let mut png = 0;
    while !matches!(raw.reply().await, (2, Reply::EvalPart { mime, .. }) if mime.contains("svg")) {}
    let more = tokio::time::timeout(Duration::from_millis(300), raw.frame()).await;
    assert!(more.is_err(), "no credit is left");
    local.idle().await;
    raw.ask(2, &Request::Credit { bytes: 1 << 20 }).await;
    loop {
        match raw.reply().await.1 {
            Reply::EvalPart { mime, data, .. } if mime == "image/png" => png += data.len(),
            Reply::EvalPart { .. } => {}
            Reply::EvalDone { result, .. } => break assert_eq!(result.as_deref(), Some("rich")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(png, 200_004);
}
