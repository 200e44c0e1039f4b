//! Enums that are words in the database, in JSON and on the command line: one list of words for all three.

/// Defines an enum whose variants are stored and shown as words.
macro_rules! text_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
        pub enum $name {
            $($(#[$variant_meta])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            /// Every word, in order of definition.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word that stands for it in the database and in JSON.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// What the word stands for; None for a word that is not one of [`Self::WORDS`].
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.as_str())
            }
        }

        impl<'a> tokio_postgres::types::FromSql<'a> for $name {
            fn from_sql(
                kind: &tokio_postgres::types::Type,
                raw: &'a [u8],
            ) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
                let word = <&str as tokio_postgres::types::FromSql>::from_sql(kind, raw)?;
                Self::from_word(word)
                    .ok_or_else(|| format!("{word:?} is not one of {}", Self::WORDS.join(", ")).into())
            }

            fn accepts(kind: &tokio_postgres::types::Type) -> bool {
                <&str as tokio_postgres::types::FromSql>::accepts(kind)
            }
        }
    };
}

pub(crate) use text_enum;
