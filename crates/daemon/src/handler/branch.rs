//! Branching a sandbox while it runs.

use axum::Json;
use axum::http::StatusCode;
use forkd_api::{BranchAnswer, BranchRequest, Child, ErrorBody, ErrorCode};
use forkd_engine::{Branch, Wait};
use forkd_types::{BranchMode, SnapshotTag};
use tracing::Instrument as _;

use crate::app::{App, to_the_end};
use crate::convert;
use crate::extract::{JsonBody, SandboxPath};
use crate::failure::Failure;
use crate::metrics::BranchResult;

/// Takes a snapshot of a running sandbox with minimal pause and starts `n` children from it.
///
/// The source goes on whatever happens. With `wait: false` the answer comes with 202 as soon as the
/// source runs again, while the snapshot is still `writing`.
#[utoipa::path(post, path = "/v1/sandboxes/{id}/branch", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = BranchRequest,
    responses((status = 201, body = BranchAnswer, description = "The snapshot is ready"),
        (status = 202, body = BranchAnswer, description = "The snapshot is being written"),
        (status = 400, body = ErrorBody, description = "A field is wrong; the error names it"),
        (status = 403, body = ErrorBody, description = "The operator does not permit that network"),
        (status = 404, body = ErrorBody, description = "No such sandbox, or private network"),
        (status = 409, body = ErrorBody, description = "The tag is taken, or it is not running"),
        (status = 503, body = ErrorBody, description = "A limit is reached; the error says which"),
        (status = 507, body = ErrorBody, description = "Not enough space")))]
pub(crate) async fn branch(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<BranchRequest>,
) -> Result<(StatusCode, Json<BranchAnswer>), Failure> {
    let checked = body.check()?;
    let request = forkd_engine::BranchRequest {
        tag: checked.tag.map(|name| app.tag(name)),
        mode: checked.mode,
        children: body.n,
        network: checked.network,
        join: checked.join,
        private: body.private,
        wait: if body.wait { Wait::UntilReady } else { Wait::UntilResumed },
    };
    let (engine, mode) = (app.engine.clone(), checked.mode);
    let branched = to_the_end(async move { engine.branch(&id, request).await }).await;
    let branch = branched.inspect_err(|failure| {
        app.metrics.branch_ended(mode, result_of(failure));
    })?;
    let status = if body.wait {
        app.metrics.branch_ended(mode, BranchResult::Ready);
        StatusCode::CREATED
    } else {
        let tag = branch.snapshot.tag.clone();
        tokio::spawn(count_when_ready(app.clone(), mode, tag).in_current_span());
        StatusCode::ACCEPTED
    };
    Ok((status, Json(answer(&app, branch, body.measure_diff == Some(true)))))
}

fn result_of(failure: &Failure) -> BranchResult {
    match failure.code() {
        ErrorCode::OperationCancelled => BranchResult::Cancelled,
        _ => BranchResult::Failed,
    }
}

/// Nobody waits for this branch; it counts all the same.
async fn count_when_ready(app: App, mode: BranchMode, tag: SnapshotTag) {
    match app.engine.wait_ready(&tag).await {
        Ok(_) => app.metrics.branch_ended(mode, BranchResult::Ready),
        Err(error) => {
            app.metrics.branch_ended(mode, BranchResult::Failed);
            tracing::error!(%tag, %error, "a branch failed after its source was resumed");
        }
    }
}

fn answer(app: &App, branch: Branch, measure_diff: bool) -> BranchAnswer {
    let report = branch.snapshot.branch.clone().filter(|_| measure_diff);
    let mut snapshot = app.snapshot(branch.snapshot);
    if let Some(report) = &report {
        convert::add_diff_figures(&mut snapshot, report);
    }
    let child = |result| match result {
        Ok(sandbox) => Child::Sandbox(Box::new(app.sandbox(sandbox))),
        Err(error) => Child::Error(Failure::from(error).body()),
    };
    BranchAnswer { snapshot, children: branch.children.into_iter().map(child).collect() }
}
