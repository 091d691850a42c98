//! Round trips, the golden file, and files that are not what was written.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use forkd_store::{Layer, LayerIndex, LayerKind, MachineIdentity, Qcow2Header, StoreFiles};
use forkd_types::{ByteCount, LayerId, OverlayId, PageRun};

use crate::file::FileWriter;
use crate::layout::Order;
use crate::{
    AlreadyHere, ArtifactError, ArtifactManifest, Contents, Digest, Documents, Export,
    ImageReference, Limits, Machine, Outgoing as _, Parts, SignedArtifact, SigningKey, Stream,
};

const MEMORY: ByteCount = ByteCount::from_mib(64);
const DISK: ByteCount = ByteCount::from_mib(16);
const DEVICES: &[u8] = b"the state of the devices";
const GOLDEN: &[u8] = include_bytes!("../testdata/format-1.tar");

fn key(seed: u8) -> SigningKey {
    SigningKey::of_seed(&[seed; 32])
}

fn manifest() -> ArtifactManifest {
    let none = Stream { bytes: 0, chunks: Vec::new() };
    ArtifactManifest {
        format: ArtifactManifest::FORMAT,
        forkd_version: "0.1.0".to_owned(),
        tag: "warm".to_owned(),
        created_at_unix: 1_700_000_000,
        ancestors: vec!["py".to_owned()],
        machine: Machine {
            vmm: MachineIdentity {
                vmm_version: "7.2.22".to_owned(),
                accelerator: "tcg".to_owned(),
                cpu_model: "max".to_owned(),
            },
            machine_type: "microvm".to_owned(),
            host_cpu: None,
            network_device: true,
            gateway_certificate: None,
        },
        memory_bytes: MEMORY,
        vcpus: 1,
        image: ImageReference {
            name: "python".to_owned(),
            content_hash: "ab".to_owned(),
            disk_bytes: Some(DISK),
        },
        limits: Limits { memory_bytes: None, own_network: false },
        network: Some(r#"{"policy":null}"#.to_owned()),
        device_state: none,
        layers: Vec::new(),
        overlays: Vec::new(),
    }
}

/// A page that says which it is.
fn page(number: u64, seed: u8) -> [u8; 4096] {
    let mut page = [seed; 4096];
    page[..8].copy_from_slice(&number.to_le_bytes());
    page
}

fn layer(id: &str, below: Option<&str>, stored: &[(u64, u64)], zero: &[(u64, u64)]) -> Layer {
    let runs = |list: &[(u64, u64)]| list.iter().map(|(s, c)| PageRun::new(*s, *c)).collect();
    let pages = tempfile::tempfile().unwrap();
    pages.set_len(MEMORY.get()).unwrap();
    let seed = if below.is_some() { 2 } else { 1 };
    for (start, count) in stored {
        for number in *start..start + count {
            // Every fifth page of the base is one that the guest has cleared.
            if below.is_some() || number % 5 != 0 {
                pages.write_all_at(&page(number, seed), number * 4096).unwrap();
            }
        }
    }
    let index = LayerIndex {
        id: id.parse().unwrap(),
        kind: if below.is_some() { LayerKind::Delta } else { LayerKind::Base },
        below: below.map(|id| id.parse().unwrap()),
        memory: MEMORY,
        stored: runs(stored),
        zero: runs(zero),
        pages_crc32: None,
    };
    Layer { index, pages }
}

/// The least that is an overlay, with the name of a file below.
fn overlay() -> Vec<u8> {
    let mut file = vec![0; 8192];
    file[..4].copy_from_slice(b"QFI\xfb");
    file[7] = 3;
    file[15] = 200;
    file[19] = 9;
    file[24..32].copy_from_slice(&DISK.get().to_be_bytes());
    file[103] = 112;
    file[200..209].copy_from_slice(b"/far/away");
    file[5000] = 7;
    file
}

const BASE: &str = "ly-0000000000000001";
const DELTA: &str = "ly-0000000000000002";

fn parts() -> Parts {
    // Over the edge of a part; the second and third 4 MiB are alike but for the numbers of pages.
    let base = layer(BASE, None, &[(1000, 60), (4000, 10)], &[]);
    let delta = layer(DELTA, Some(BASE), &[(1001, 2), (9000, 1)], &[(4001, 2)]);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&overlay(), 0).unwrap();
    let overlays = vec![("ly-0000000000000003".parse().unwrap(), file)];
    Parts { device_state: DEVICES.to_vec(), layers: vec![base, delta], overlays }
}

fn go_on(_: u64, _: u64) -> Result<(), ArtifactError> {
    Ok(())
}

/// Of what an artifact holds, nothing is here.
fn nothing(_: &Contents) -> AlreadyHere {
    AlreadyHere::default()
}

fn exported(parts: Parts) -> Vec<u8> {
    let export = Export::prepare(manifest(), parts, &key(7), &mut go_on).unwrap();
    let bytes = export.file_bytes();
    let mut file = Vec::new();
    export.write(&mut file, &mut go_on).unwrap();
    assert_eq!(file.len() as u64, bytes, "the length that was announced");
    file
}

struct Store {
    files: StoreFiles,
    directories: [tempfile::TempDir; 2],
}

impl Store {
    fn new() -> Self {
        let directories = [(); 2].map(|()| tempfile::tempdir_in("/dev/shm").unwrap());
        let [state, hot] = &directories;
        Self { files: StoreFiles::open(state.path(), hot.path()).unwrap(), directories }
    }

    fn names(&self) -> Vec<String> {
        let [state, hot] = &self.directories;
        let folders = [hot.path().join("layers"), state.path().join("overlays")];
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Imports a file and leaves it at that.
    fn import(&self, file: &[u8]) -> Result<(), ArtifactError> {
        SignedArtifact::read(file)?
            .unpack()?
            .receive(&self.files, &mut nothing, &mut go_on)
            .map(drop)
    }
}

/// Panics unless the file gives what [`parts`] has.
fn assert_imports(file: &[u8]) {
    let store = Store::new();
    let signed = SignedArtifact::read(file).unwrap();
    assert_eq!(*signed.signer(), key(7).public());
    let unpacked = signed.unpack().unwrap();
    assert_eq!(unpacked.manifest().tag, "warm");
    let received = unpacked.receive(&store.files, &mut nothing, &mut go_on).unwrap();
    let [base, delta] = <[_; 2]>::try_from(received.layers.clone()).unwrap();
    let [base, delta] = [base, delta].map(|id| Layer::open_hot(&store.files, &id).unwrap());
    assert_eq!(delta.index.below.as_ref(), Some(&base.index.id));
    assert_eq!(delta.index.stored, [PageRun::new(1001, 2), PageRun::new(9000, 1)]);
    assert_eq!(delta.index.zero, [PageRun::new(4001, 2)]);
    // Pages of zeros are not carried: the first of each run are holes. Smaller holes are filled.
    assert_eq!(base.index.stored, [PageRun::new(1001, 59), PageRun::new(4001, 9)]);
    for (layer, seed, pages) in [(&base, 1, 1000..1060), (&delta, 2, 1001..1003)] {
        for number in pages {
            let mut found = [9; 4096];
            layer.pages.read_exact_at(&mut found, number * 4096).unwrap();
            let zero = seed == 1 && number % 5 == 0;
            assert!(found == if zero { [0; 4096] } else { page(number, seed) }, "page {number}");
        }
    }
    let devices = fs::read(store.files.hot_device_state(&delta.index.id)).unwrap();
    assert_eq!(devices, DEVICES);
    let disk = fs::read(store.files.overlay(&received.overlays[0])).unwrap();
    let mut wanted = overlay();
    wanted[8..20].fill(0);
    wanted[200..209].fill(0);
    assert!(disk == wanted, "all but the name of the file below");
    drop(received);
    assert_eq!(store.names(), Vec::<String>::new(), "what is not kept goes");
}

#[test]
fn what_was_exported_is_imported() {
    assert_imports(&exported(parts()));
}

/// `FORKD_UPDATE=1` writes it anew.
#[test]
fn the_format_is_what_it_was() {
    let now = exported(parts());
    if std::env::var_os("FORKD_UPDATE").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/format-1.tar");
        fs::write(path, &now).unwrap();
        return;
    }
    assert_imports(GOLDEN);
    assert!(now == GOLDEN, "changed the format? see FORMAT; another zstd? write the file anew");
}

#[test]
fn two_snapshots_of_one_lineage_share_all_but_what_is_new() {
    let of = |parts| Export::prepare(manifest(), parts, &key(7), &mut go_on).unwrap();
    let below = of(Parts { layers: parts().layers.drain(..1).collect(), ..parts() });
    let above = of(parts());
    let digests = |export: &Export| export.digests();
    let fresh = digests(&above).into_iter().filter(|part| !digests(&below).contains(part)).count();
    // The index of the delta, and its pages in two places of memory.
    assert_eq!(fresh, 3);
}

/// What a store has of a snapshot, as it would be exported from there.
fn parts_of(files: &StoreFiles, layers: &[LayerId], overlays: &[OverlayId]) -> Parts {
    let layers = layers.iter().map(|id| Layer::open_hot(files, id).unwrap()).collect();
    let overlays = overlays.iter().map(|id| (id.clone(), File::open(files.overlay(id)).unwrap()));
    Parts { device_state: DEVICES.to_vec(), layers, overlays: overlays.collect() }
}

#[test]
fn what_came_from_elsewhere_holds_the_same_under_other_names() {
    let first = Export::prepare(manifest(), parts(), &key(7), &mut go_on).unwrap();
    let (store, file) = (Store::new(), exported(parts()));
    let unpacked = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap();
    let received = unpacked.receive(&store.files, &mut nothing, &mut go_on).unwrap();
    assert_eq!(&received.contents, first.contents());
    assert_ne!(received.layers[0].as_str(), BASE);
    let parts = parts_of(&store.files, &received.layers, &received.overlays);
    let again = Export::prepare(manifest(), parts, &key(8), &mut go_on).unwrap();
    assert_eq!(again.contents(), first.contents());
}

#[test]
fn what_is_here_already_is_neither_taken_nor_removed() {
    let (store, file) = (Store::new(), exported(parts()));
    let unpacked = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap();
    let received = unpacked.receive(&store.files, &mut nothing, &mut go_on).unwrap();
    let here = AlreadyHere { layers: received.layers.clone(), overlays: received.overlays.clone() };
    let (known, taken) = (received.contents.clone(), received.taken_bytes);
    received.keep();
    let before = store.names();
    let mut above = parts();
    above.layers.push(layer("ly-0000000000000004", Some(DELTA), &[(7000, 1)], &[]));
    above.device_state = b"other devices".to_vec();
    let file = exported(above);
    let unpacked = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap();
    let mut find = |contents: &Contents| {
        assert_eq!(
            (&contents.layers[..2], &contents.overlays),
            (&known.layers[..], &known.overlays)
        );
        assert_ne!(contents.device_state, known.device_state);
        here.clone()
    };
    let mut last = (0, 0);
    let mut tell = |done, all| {
        last = (done, all);
        Ok(())
    };
    let received = unpacked.receive(&store.files, &mut find, &mut tell).unwrap();
    assert_eq!((&received.layers[..2], &received.overlays), (&here.layers[..], &here.overlays));
    assert_eq!(last, (received.taken_bytes, received.taken_bytes), "progress is of what comes");
    assert!(received.taken_bytes < taken / 2, "{} of {taken}", received.taken_bytes);
    let top = Layer::open_hot(&store.files, &received.layers[2]).unwrap();
    assert_eq!(top.index.below.as_ref(), Some(&here.layers[1]));
    drop(received);
    assert_eq!(store.names(), before, "what was here stays, and what has come goes");
}

#[test]
fn a_part_of_the_devices_that_is_one_of_the_disk_too_comes_once() {
    let mut wanted = overlay();
    Qcow2Header::forget_backing(&mut wanted);
    let store = Store::new();
    let file = exported(Parts { device_state: wanted.clone(), ..parts() });
    let unpacked = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap();
    let received = unpacked.receive(&store.files, &mut nothing, &mut go_on).unwrap();
    assert!(fs::read(store.files.overlay(&received.overlays[0])).unwrap() == wanted);
    let top = received.layers.last().unwrap();
    assert!(fs::read(store.files.hot_device_state(top)).unwrap() == wanted);
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

/// Changes a file somehow.
fn damage(file: &[u8], random: &mut Random) -> Vec<u8> {
    let mut damaged = file.to_vec();
    let (at, other) = (random.below(file.len()), random.below(file.len()));
    let (from, to) = (at.min(other), at.max(other));
    // Of headers, whose fields are where lengths and names are.
    let block = random.below(file.len() / 512) * 512;
    match random.below(8) {
        0 | 1 => damaged[at] ^= 1 << random.below(8),
        2 => damaged[block + random.below(160)] ^= 1 << random.below(8),
        3 => damaged.truncate(at),
        4 => drop(damaged.drain(from..to)),
        5 => drop(damaged.drain(block..block + 512)),
        6 => {
            let copy = damaged[block..block + 512].to_vec();
            let place = random.below(file.len() / 512) * 512;
            damaged[place..place + 512].copy_from_slice(&copy);
        }
        _ => {
            let more = damaged[from..to].to_vec();
            damaged.extend(more);
        }
    }
    damaged
}

fn search(count: u32) {
    let (file, store, mut random) = (exported(parts()), Store::new(), Random(4711));
    store.import(&file).unwrap();
    for number in 0..count {
        let damaged = damage(&file, &mut random);
        if damaged == file {
            continue;
        }
        let error = store.import(&damaged).err();
        let error = error.unwrap_or_else(|| panic!("damage {number} was not noticed"));
        assert!(error.to_string().len() > 15, "damage {number} is not explained: {error}");
        assert_eq!(store.names(), Vec::<String>::new(), "damage {number} left something");
    }
}

#[test]
fn a_damaged_file_is_refused_and_leaves_nothing() {
    search(10_000);
}

/// What a signer may say whom the user trusts, or accepts once: a file that is whole, of a manifest
/// that `change` has changed.
fn lie(change: impl FnOnce(&mut ArtifactManifest)) -> Result<(), ArtifactError> {
    let export = Export::prepare(manifest(), parts(), &key(7), &mut go_on).unwrap();
    let parts = export.all_parts();
    let mut manifest = export.manifest();
    change(&mut manifest);
    let text = manifest.encode()?;
    let signature = key(7).sign(&text).encode();
    let order = Order::of(&manifest)?;
    let documents = Documents::new(&manifest.tag, text, signature, &order)?;
    let mut file = Vec::new();
    let mut to = FileWriter(&mut file);
    to.begin(&documents).unwrap();
    for (chunk, _) in order.parts() {
        let known = parts.iter().find(|part| Digest::of(part) == chunk.digest);
        to.part(chunk, known.unwrap().clone()).unwrap();
    }
    to.finish(&documents).unwrap();
    let store = Store::new();
    let imported = store.import(&file);
    assert_eq!(store.names(), Vec::<String>::new());
    imported
}

#[test]
fn a_signed_manifest_that_contradicts_itself_or_asks_for_too_much_is_refused() {
    lie(|_| ()).unwrap();
    type Lie = fn(&mut ArtifactManifest);
    let lies: [(&str, Lie); 16] = [
        ("format 2", |m| m.format = 2),
        ("of memory, in whole MiB", |m| m.memory_bytes = ByteCount::from_mib(1 << 30)),
        ("another memory size", |m| m.memory_bytes = ByteCount::from_mib(128)),
        ("virtual CPUs", |m| m.vcpus = 0),
        ("disk overlays, not 1", |m| m.overlays.clear()),
        ("its image has no disk", |m| m.image.disk_bytes = None),
        ("for a disk of", |m| m.image.disk_bytes = Some(MEMORY)),
        ("0 memory layers", |m| m.layers.clear()),
        ("does not name the layer below", |m| drop(m.layers.remove(0))),
        ("does not name the layer below", |m| m.layers.swap(0, 1)),
        ("index is that of another layer", |m| {
            let id = m.layers[0].id.clone();
            m.layers[0].id = std::mem::replace(&mut m.layers[1].id, id);
        }),
        ("twice", |m| m.layers[1].id = m.layers[0].id.clone()),
        ("number of parts", |m| m.layers[0].chunks.truncate(1)),
        ("than the manifest says", |m| m.device_state.bytes += 1),
        ("holds more than it may", |m| m.device_state.bytes -= 1),
        ("not 1 to", |m| m.overlays[0].file.bytes = 1 << 60),
    ];
    for (words, change) in lies {
        let error = lie(change).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
    }
    // The pages of one layer for those of the other: of another length.
    let swap = |m: &mut ArtifactManifest| m.layers[1].chunks[0] = m.layers[0].chunks[0];
    assert!(lie(swap).unwrap_err().to_string().contains("two lengths"));
}

#[test]
fn a_signature_holds_for_one_manifest_and_one_key() {
    let text = manifest().encode().unwrap();
    let signature = key(1).sign(&text);
    assert_eq!(signature.verify(&text), Ok(key(1).public()));
    let mut other = manifest();
    other.tag = "other".to_owned();
    assert!(signature.verify(&other.encode().unwrap()).is_err());
    let forged = String::from_utf8(signature.encode()).unwrap();
    let forged =
        forged.replace(&key(1).public().to_string(), &key(2).public().to_string()).into_bytes();
    assert!(crate::Signature::decode(&forged).unwrap().verify(&text).is_err());
}

#[test]
fn an_import_that_is_stopped_leaves_nothing() {
    let file = exported(parts());
    let store = Store::new();
    let count = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap().part_count();
    for last in 0..=count {
        let mut told = 0;
        let mut stop = |_: u64, _: u64| {
            told += 1;
            if told > last { Err(ArtifactError::Stopped) } else { Ok(()) }
        };
        let unpacked = SignedArtifact::read(&file[..]).unwrap().unpack().unwrap();
        let error = unpacked.receive(&store.files, &mut nothing, &mut stop).err().unwrap();
        assert!(matches!(error, ArtifactError::Stopped), "{error}");
        assert_eq!(store.names(), Vec::<String>::new(), "after {last}");
    }
}

#[test]
fn a_file_that_changes_while_it_is_exported_is_noticed() {
    let changes: [fn(&File); 2] =
        [|file| file.set_len(100).unwrap(), |file| file.write_all_at(b"x", 5000).unwrap()];
    for change in changes {
        let parts = parts();
        let file = parts.overlays[0].1.try_clone().unwrap();
        let export = Export::prepare(manifest(), parts, &key(7), &mut go_on).unwrap();
        change(&file);
        let error = export.write(&mut Vec::new(), &mut go_on).unwrap_err();
        assert!(matches!(error, ArtifactError::Changed), "{error}");
    }
}
