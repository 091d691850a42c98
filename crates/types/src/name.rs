//! Closed sets of words. Each is an enum whose values have names, and the name is the same in code,
//! on the wire, in the registry, in metrics and in documents, because it is written once.

/// A value with a name.
pub trait Named: Copy + Eq + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Its name.
    fn name(self) -> &'static str;

    /// The value with this name.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|value| value.name() == name)
    }
}

/// Defines an enum of named values, with a default after `or` if it has one. With the feature
/// `schema` it describes itself in OpenAPI.
macro_rules! named {
    ($(#[doc = $doc:literal])+ $type:ident $(or $default:ident)? {
        $($(#[$value_meta:meta])* $value:ident = $name:literal,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $type {
            $($(#[$value_meta])* #[serde(rename = $name)] $value,)+
        }

        impl $type {
            /// All values, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Its name, the same wherever it is said.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }
        }

        impl $crate::Named for $type {
            const ALL: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }
        }

        $(
            impl Default for $type {
                fn default() -> Self {
                    Self::$default
                }
            }
        )?

        #[cfg(feature = "schema")]
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::Type::String)
                    .description(Some(concat!($($doc),+).trim()))
                    .enum_values(Some(Self::ALL.map(Self::name)))
                    .into()
            }
        }

        #[cfg(feature = "schema")]
        impl utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::*;

    fn check<T>()
    where
        T: Named + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        for value in T::ALL {
            let json = serde_json::to_string(value).unwrap();
            assert_eq!(json, format!("\"{}\"", value.name()));
            assert_eq!(serde_json::from_str::<T>(&json).unwrap(), *value);
            assert_eq!(T::from_name(value.name()), Some(*value), "another has the same name");
        }
        assert_eq!(T::from_name(""), None);
    }

    #[test]
    fn a_value_has_one_name_in_rust_and_in_json_and_shares_it_with_none() {
        check::<SandboxState>();
        check::<SnapshotStatus>();
        check::<OperationState>();
        check::<OperationKind>();
        check::<Accelerator>();
        check::<CpuModel>();
        check::<ProcessState>();
        check::<FileKind>();
        check::<BranchMode>();
        check::<BranchPhase>();
        check::<StartPhase>();
        check::<EventType>();
    }
}
