//! What a build begins with: a snapshot that is there, or a template that is made of an image.

use forkd_api::CreateSnapshot;
use forkd_client::{Client, ClientError};
use forkd_recipe::{Base, Key, Origin};

use crate::{follow, start};

/// The snapshot, and the key of its state.
pub(super) async fn prepare(
    client: &Client,
    base: &Base,
    is_anew: bool,
) -> anyhow::Result<(String, Key)> {
    match base {
        Base::Name(name) => {
            start::prepare(client, name).await?;
            let snapshot = client.snapshot_info(name).await?.snapshot;
            let created_at_unix = snapshot.created_at_unix;
            let origin = Origin::Snapshot { tag: snapshot.tag, created_at_unix };
            Ok((name.clone(), Key::of_origin(&origin)))
        }
        Base::Image { reference, mem_size_mib, vcpus } => {
            let reference = start::absolute(reference)?;
            let (mem_size_mib, vcpus) = (*mem_size_mib, *vcpus);
            let origin = Origin::Image { reference: reference.clone(), mem_size_mib, vcpus };
            let key = Key::of_origin(&origin);
            let mut body = CreateSnapshot::from_reference(key.tag(), reference);
            body.mem_size_mib = mem_size_mib.unwrap_or(body.mem_size_mib);
            body.vcpus = vcpus.unwrap_or(body.vcpus);
            template(client, &body, is_anew).await?;
            Ok((body.tag, key))
        }
    }
}

async fn template(client: &Client, body: &CreateSnapshot, is_anew: bool) -> anyhow::Result<()> {
    if is_anew {
        super::cache::remove(client, &body.tag).await?;
    }
    match client.snapshot_info(&body.tag).await {
        Ok(_) => start::prepare(client, &body.tag).await,
        Err(ClientError::Api(failure)) if failure.code == "snapshot_not_found" => {
            follow::build(client.build_snapshot(body).await?, &body.tag).await.map(drop)
        }
        Err(error) => Err(error.into()),
    }
}
