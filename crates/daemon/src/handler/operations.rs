//! Operations: look at them, wait for them, cancel them.

use axum::Json;
use axum::http::StatusCode;
use forkd_api::{ErrorBody, Operation, check_wait};
use forkd_types::{Named as _, OperationState};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::app::App;
use crate::extract::{OperationPath, Query};
use crate::failure::Failure;

/// For a client that does not say how long it wants to wait.
const WAIT_SECS_DEFAULT: u64 = 30;

/// Which operations.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only those with this state.
    #[serde(default)]
    #[param(value_type = Option<OperationState>)]
    state: Option<String>,
}

/// How long to wait.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// The answer comes after so many seconds at the latest, 0 to 3600; by default 30.
    #[serde(default = "wait_secs_default")]
    timeout_secs: u64,
}

const fn wait_secs_default() -> u64 {
    WAIT_SECS_DEFAULT
}

/// Lists the operations that run and the last 256 that ended, oldest first.
#[utoipa::path(get, path = "/v1/operations", tag = "operations", params(ListQuery),
    responses((status = 200, body = Vec<Operation>),
        (status = 400, body = ErrorBody, description = "No such state")))]
pub(crate) async fn list(
    app: App,
    Query(query): Query<ListQuery>,
) -> Result<Json<Vec<Operation>>, Failure> {
    let wanted = query.state.as_deref().map(state).transpose()?;
    let is_wanted =
        |operation: &forkd_engine::Operation| wanted.is_none_or(|wanted| operation.state == wanted);
    let operations = app.engine.operations().into_iter().filter(is_wanted);
    Ok(Json(operations.map(|operation| app.operation(operation)).collect()))
}

fn state(word: &str) -> Result<OperationState, Failure> {
    OperationState::from_name(word).ok_or_else(|| {
        let names = OperationState::ALL.map(OperationState::name).join(", ");
        Failure::bad_request(format!("state: is none of {names}"))
    })
}

/// Tells of one operation.
#[utoipa::path(get, path = "/v1/operations/{id}", tag = "operations",
    params(("id" = String, Path, description = "The operation's id")),
    responses((status = 200, body = Operation), (status = 404, body = ErrorBody)))]
pub(crate) async fn one(
    app: App,
    OperationPath(id): OperationPath,
) -> Result<Json<Operation>, Failure> {
    Ok(Json(app.operation(app.engine.operation(&id)?)))
}

/// Waits until an operation has ended, or for as long as asked: its state is then `running`.
#[utoipa::path(get, path = "/v1/operations/{id}/wait", tag = "operations",
    params(("id" = String, Path, description = "The operation's id"), WaitQuery),
    responses((status = 200, body = Operation),
        (status = 400, body = ErrorBody, description = "`timeout_secs` is out of bounds"),
        (status = 404, body = ErrorBody)))]
pub(crate) async fn wait(
    app: App,
    OperationPath(id): OperationPath,
    Query(query): Query<WaitQuery>,
) -> Result<Json<Operation>, Failure> {
    let within = check_wait(query.timeout_secs)?;
    Ok(Json(app.operation(app.engine.wait_operation(&id, within).await?)))
}

/// Asks an operation to stop.
///
/// It is `cancelled` once what it has done is undone, which takes a moment: wait for it. A template
/// can be cancelled until it is frozen, a compaction until its files are complete, a publication
/// while it waits for its turn, and a branch before its source is paused.
#[utoipa::path(post, path = "/v1/operations/{id}/cancel", tag = "operations",
    params(("id" = String, Path, description = "The operation's id")),
    responses((status = 202, body = Operation), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody,
            description = "It has ended, or has come too far; the error says which")))]
pub(crate) async fn cancel(
    app: App,
    OperationPath(id): OperationPath,
) -> Result<(StatusCode, Json<Operation>), Failure> {
    let operation = app.engine.cancel_operation(&id)?;
    Ok((StatusCode::ACCEPTED, Json(app.operation(operation))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_does_not_exist_is_refused_with_those_that_do() {
        for known in OperationState::ALL {
            assert_eq!(state(known.name()).unwrap(), known);
        }
        let refusal = state("done").unwrap_err().body().error;
        assert!(refusal.contains("running, succeeded, failed, cancelled"), "{refusal}");
    }
}
