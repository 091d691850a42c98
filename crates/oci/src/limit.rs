//! What an image may have. Registries and archives are not trusted: each of these stops one that
//! would fill memory or disk.

/// Bytes of a manifest, an index or a configuration; registries allow 4 MiB.
pub const DOCUMENT_BYTES_MAX: u64 = 4 << 20;

/// Names in a list of a registry's: of its repositories, or of the tags of one.
pub const LISTED_NAMES_MAX: usize = 10_000;

/// Pages of such a list.
pub const LIST_PAGES_MAX: usize = 100;

/// Layers of an image; Docker allows 127.
pub const LAYERS_MAX: usize = 256;

/// Entries of all archives of an image; the largest images have half a million.
pub const ENTRIES_MAX: u64 = 4_000_000;

/// Bytes of what an archive says about one entry: its long name and attributes.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Bytes of all names, targets and attributes of an image. They are held in memory.
pub const NAMES_BYTES_MAX: u64 = 512 << 20;

/// Bytes of one layer as it is fetched.
pub const BLOB_BYTES_MAX: u64 = 64 << 30;

/// Bytes of all layers, unpacked.
pub const CONTENT_BYTES_MAX: u64 = 256 << 30;

/// Bytes of a name in a directory.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of a path, and of the target of a symbolic link.
pub const PATH_BYTES_MAX: usize = 4095;

/// Symbolic links that are followed on the way to one entry.
pub const LINKS_FOLLOWED_MAX: usize = 40;

/// Bytes that layers may take in the cache when nothing is being built.
pub const CACHE_BYTES_MAX: u64 = 20 << 30;

/// Free space on a disk, beside what the image has. It takes no space on the host until it is
/// written.
pub const DISK_FREE_BYTES: u64 = 4 << 30;
