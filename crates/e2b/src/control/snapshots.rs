//! Snapshots that outlive their sandbox. Clients start sandboxes from one by its id.

use axum::Json;
use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, StatusCode};
use forkd_engine::{DeletePolicy, Snapshot};
use forkd_types::{SnapshotStatus, TagName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::asked::{Asked, Body, Said, to_the_end, without_build};
use super::fork::{FORK_TAG, random_tag};
use super::list::{newest_page, page_limit};
use crate::failure::{Failure, Kind};
use crate::id;

/// A wish for a snapshot.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct NewSnapshot {
    /// A tag. Without one it is found by its id alone.
    name: Option<String>,
    /// `false` is refused: forkd's snapshots have their memory.
    memory: Option<bool>,
}

/// A snapshot of a sandbox.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Snapshot)]
pub(super) struct SnapshotShown {
    /// Sandboxes start from it, as from a template.
    #[serde(rename = "snapshotID")]
    snapshot_id: String,
    /// The name that it was given, if it was given one.
    names: Vec<String>,
}

/// A template that there is.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TemplateName {
    #[serde(rename = "templateID")]
    template_id: String,
    /// Always `false`.
    public: bool,
}

/// A name for a snapshot. forkd has one build of each name, which E2B calls `default`.
fn tag_of(name: &str) -> Result<TagName, Failure> {
    let name = without_build(name);
    let tag: TagName = name
        .parse()
        .map_err(|error: forkd_types::TagError| Failure::field("name", &error.to_string()))?;
    match tag.plain() {
        Some(_) => Ok(tag),
        None => Err(Failure::field("name", "must not name an owner")),
    }
}

/// A snapshot as clients know it. One with a name of its own is found by it.
fn shown(tag: &str) -> SnapshotShown {
    let is_nameless = tag.starts_with("e2b-snapshot-");
    let names = if is_nameless { Vec::new() } else { vec![tag.to_owned()] };
    SnapshotShown { snapshot_id: format!("{tag}:default"), names }
}

pub(super) async fn create(
    asked: Asked,
    Path(said): Said,
    Body(body): Body<NewSnapshot>,
) -> Result<(StatusCode, Json<SnapshotShown>), Failure> {
    let source = asked.sandbox(&said)?;
    if body.memory == Some(false) {
        return Err(Failure::not_done("memory: false"));
    }
    let name = match body.name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => tag_of(name)?,
        None => random_tag("e2b-snapshot-")?,
    };
    let answer = shown(&name.to_string());
    let tag = name.said_by(asked.engine.caller().owner());
    to_the_end(async move { asked.branch(&source, tag).await }).await?;
    Ok((StatusCode::CREATED, Json(answer)))
}

pub(super) async fn list(
    asked: Asked,
    RawQuery(query): RawQuery,
) -> Result<(HeaderMap, Json<Vec<SnapshotShown>>), Failure> {
    let (mut source, mut name, mut limit, mut after) = (None, None, None, None);
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match key.as_ref() {
            "sandboxID" => source = Some(value.into_owned()),
            "name" => name = Some(value.trim_end_matches(":default").to_owned()),
            "limit" => limit = Some(page_limit(&value)?),
            "nextToken" => after = Some(value.into_owned()),
            _ => {}
        }
    }
    let owner = asked.engine.caller().owner().clone();
    let is_wanted = |snapshot: &Snapshot, shown: &str| {
        let branched_from = snapshot.branched_from.as_ref().map(id::shown);
        snapshot.status == SnapshotStatus::Ready
            && branched_from.is_some()
            && !shown.starts_with(FORK_TAG)
            && source.as_ref().is_none_or(|source| branched_from.as_ref() == Some(source))
            && name.as_ref().is_none_or(|name| name == shown)
    };
    let all = asked.engine.snapshots().into_iter().filter_map(|snapshot| {
        let tag = snapshot.tag.shown_to(&owner);
        is_wanted(&snapshot, &tag).then(|| (snapshot.created_at, tag.clone(), shown(&tag)))
    });
    let (page, next) = newest_page(all.collect(), after.as_deref(), limit)?;
    Ok((next, Json(page)))
}

/// Whether there is a template of this name: clients ask before they build one.
pub(super) async fn alias(asked: Asked, Path(said): Said) -> Result<Json<TemplateName>, Failure> {
    let template_id = asked.template(&said)?.shown_to(asked.engine.caller().owner());
    Ok(Json(TemplateName { template_id, public: false }))
}

/// What was started from it runs on. A template, and what stands for one, is its builder's to
/// remove: others start sandboxes from it.
pub(super) async fn remove(asked: Asked, Path(said): Said) -> Result<StatusCode, Failure> {
    let tag = asked.template(&said)?;
    let engine = asked.engine.clone();
    let is_snapshot = engine.snapshot(&tag).is_ok_and(|found| found.branched_from.is_some());
    if !is_snapshot || asked.is_alias(&said) {
        let shown = tag.shown_to(engine.caller().owner());
        let text = format!(
            "'{shown}' is a template, not a snapshot of a sandbox; remove it with \
             `forkd snapshot rm {shown}`"
        );
        return Err(Failure::new(Kind::PermissionDenied, text));
    }
    to_the_end(async move { engine.delete_snapshot(&tag, DeletePolicy::Force).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_tag_and_another_build_of_it_is_refused() {
        assert_eq!(tag_of("a-1").unwrap().to_string(), "a-1");
        assert_eq!(tag_of("a-1:default").unwrap().to_string(), "a-1");
        for bad in ["a:v2", "ann/a", "a b", ""] {
            assert!(tag_of(bad).is_err(), "{bad}");
        }
        let expected = serde_json::json!({"snapshotID": "a:default", "names": ["a"]});
        assert_eq!(serde_json::json!(shown("a")), expected);
    }
}
