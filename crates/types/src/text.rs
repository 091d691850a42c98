//! Values that are written as text wherever they are stored or sent.

/// Reads a type from text by its `FromStr`, whose error is `$error`, and writes it as it is shown:
/// what `#[serde(try_from = "String", into = "String")]` asks for.
macro_rules! as_text {
    ($type:ty, $error:ty) => {
        impl TryFrom<String> for $type {
            type Error = $error;

            fn try_from(value: String) -> Result<Self, $error> {
                value.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }
    };
}

pub(crate) use as_text;
