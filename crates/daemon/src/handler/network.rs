//! What sandboxes may reach, and what they have reached.

use axum::Json;
use forkd_api::{ErrorBody, NetworkLog, NetworkPolicy, Sandbox};
use forkd_engine::FlowRecord;
use forkd_types::limit;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::app::{App, to_the_end};
use crate::convert;
use crate::extract::{JsonBody, Query, SandboxPath};
use crate::failure::Failure;

/// Tells what a sandbox may reach.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    responses((status = 200, body = NetworkPolicy), (status = 404, body = ErrorBody)))]
pub(crate) async fn policy(
    app: App,
    SandboxPath(id): SandboxPath,
) -> Result<Json<NetworkPolicy>, Failure> {
    Ok(Json(app.sandbox(app.engine.sandbox(&id)?).network))
}

/// Replaces what a sandbox may reach: a field that is left out is what it is by default. Without
/// `join` it stays a member of the private networks that it is in; with nothing but `join`, only
/// these change.
///
/// It holds for new connections at once, and ends those that it does not permit. What is branched
/// from the sandbox later inherits it.
#[utoipa::path(put, path = "/v1/sandboxes/{id}/network", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id")),
    request_body = NetworkPolicy,
    responses((status = 200, body = Sandbox), (status = 400, body = ErrorBody),
        (status = 403, body = ErrorBody, description = "More than the operator permits"),
        (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody,
            description = "It does not run, or has no network device"),
        (status = 503, body = ErrorBody, description = "The gateway does not answer")))]
pub(crate) async fn set_policy(
    app: App,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<NetworkPolicy>,
) -> Result<Json<Sandbox>, Failure> {
    let (engine, policy, join) = (app.engine.clone(), body.check()?, body.joined()?);
    let changed = async move {
        match join {
            Some(join) if !body.is_policy() => engine.set_networks(&id, join).await,
            join => engine.set_network(&id, policy, join).await,
        }
    };
    let changed = to_the_end(changed).await?;
    Ok(Json(app.sandbox(changed)))
}

/// Which entries.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LogQuery {
    /// Only entries after the one with this number, oldest first. Without it, the newest ones.
    #[serde(default)]
    after: Option<u64>,
    /// At most so many entries, 1 to 1,000. By default 1,000.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// Tells what a sandbox has reached, and what it was refused.
///
/// There is an entry for each connection at its end, and for each refusal. To follow the log, ask
/// again for what comes after the last number. The log keeps the last 1 to 2 MiB.
#[utoipa::path(get, path = "/v1/sandboxes/{id}/network/log", tag = "sandboxes",
    params(("id" = String, Path, description = "The sandbox's id"), LogQuery),
    responses((status = 200, body = NetworkLog), (status = 400, body = ErrorBody),
        (status = 404, body = ErrorBody)))]
pub(crate) async fn log(
    app: App,
    SandboxPath(id): SandboxPath,
    Query(query): Query<LogQuery>,
) -> Result<Json<NetworkLog>, Failure> {
    let most = limit::NETWORK_LOG_ENTRIES_MAX;
    let wanted = query.limit.unwrap_or(most);
    if !(1..=most).contains(&wanted) {
        return Err(Failure::bad_request(format!("limit: {wanted} is not between 1 and {most}")));
    }
    let records = app.engine.network_log(&id).await?;
    Ok(Json(page(records, query.after, wanted)))
}

/// The entries that a reader wants, and how many of them are no longer kept.
fn page(mut records: Vec<FlowRecord>, after: Option<u64>, limit: usize) -> NetworkLog {
    let first = records.first().map_or(1, |record| record.number);
    let missing = match after {
        Some(after) => {
            records.retain(|record| record.number > after);
            records.truncate(limit);
            first.saturating_sub(after.saturating_add(1))
        }
        None => {
            records.drain(..records.len().saturating_sub(limit));
            records.first().map_or(0, |record| record.number.saturating_sub(1))
        }
    };
    NetworkLog { entries: records.into_iter().map(convert::flow).collect(), missing }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_types::FlowOutcome;
    use forkd_types::network::Protocol;

    fn records(numbers: impl Iterator<Item = u64>) -> Vec<FlowRecord> {
        let record = |number| FlowRecord {
            number,
            unix_ms: 0,
            outcome: FlowOutcome::Ended,
            protocol: Protocol::Tcp,
            address: None,
            port: None,
            name: None,
            reason: String::new(),
            traffic: None,
            repeated: None,
        };
        numbers.map(record).collect()
    }

    fn numbers(page: &NetworkLog) -> Vec<u64> {
        page.entries.iter().map(|entry| entry.number).collect()
    }

    #[test]
    fn without_a_number_a_reader_gets_the_newest_and_then_what_follows() {
        let newest = page(records(1..=9), None, 3);
        assert_eq!((numbers(&newest), newest.missing), (vec![7, 8, 9], 6));
        let next = page(records(1..=12), Some(9), 2);
        assert_eq!((numbers(&next), next.missing), (vec![10, 11], 0));
        let none = page(records(1..=12), Some(12), 2);
        assert_eq!((numbers(&none), none.missing), (vec![], 0));
        assert_eq!(page(records(1..=12), Some(u64::MAX), 2).missing, 0);
    }

    #[test]
    fn a_reader_is_told_how_many_entries_it_missed() {
        let late = page(records(20..=25), Some(9), 100);
        assert_eq!((numbers(&late).len(), late.missing), (6, 10));
        assert_eq!(page(records(1..1), Some(0), 100).missing, 0);
    }
}
