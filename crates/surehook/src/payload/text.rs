//! The one rule by which bytes of unknown encoding become the text of a payload.
//!
//! Bytes are read as UTF-8, and what is none becomes U+FFFD. A commit may name its encoding: the Latin family is decoded, any
//! other is read by the rule above. NUL stays, as `\u0000` in JSON.

/// The encodings that are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8, and whatever is not known here.
    Utf8,
    /// ISO-8859-1: each byte is the character of that number.
    Latin1,
    /// ISO-8859-15: Latin-1 with the euro sign and seven others.
    Latin9,
    /// Windows code page 1252: Latin-1 with characters in place of the upper controls.
    Windows1252,
}

impl Encoding {
    /// The encoding that the header of a commit names.
    pub fn named(name: &[u8]) -> Self {
        let name = String::from_utf8_lossy(name).trim().to_ascii_lowercase().replace(['_', ' '], "-");
        match name.as_str() {
            "iso-8859-1" | "iso8859-1" | "latin1" | "latin-1" | "l1" => Self::Latin1,
            "iso-8859-15" | "iso8859-15" | "latin9" | "latin-9" => Self::Latin9,
            "windows-1252" | "cp1252" | "cp-1252" => Self::Windows1252,
            _ => Self::Utf8,
        }
    }

    /// The text of these bytes.
    pub fn decode(self, bytes: &[u8]) -> String {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes).into_owned(),
            Self::Latin1 => bytes.iter().map(|byte| char::from(*byte)).collect(),
            Self::Latin9 => bytes.iter().map(|byte| latin9(*byte)).collect(),
            Self::Windows1252 => bytes.iter().map(|byte| windows1252(*byte)).collect(),
        }
    }
}

fn latin9(byte: u8) -> char {
    match byte {
        0xA4 => '€',
        0xA6 => 'Š',
        0xA8 => 'š',
        0xB4 => 'Ž',
        0xB8 => 'ž',
        0xBC => 'Œ',
        0xBD => 'œ',
        0xBE => 'Ÿ',
        other => char::from(other),
    }
}

fn windows1252(byte: u8) -> char {
    const UPPER: [char; 32] = [
        '€', '\u{81}', '‚', 'ƒ', '„', '…', '†', '‡', 'ˆ', '‰', 'Š', '‹', 'Œ', '\u{8d}', 'Ž', '\u{8f}', '\u{90}', '‘',
        '’', '“', '”', '•', '–', '—', '˜', '™', 'š', '›', 'œ', '\u{9d}', 'ž', 'Ÿ',
    ];
    match byte {
        0x80..=0x9F => UPPER[usize::from(byte - 0x80)],
        other => char::from(other),
    }
}

/// The text of bytes that name no encoding.
pub fn text(bytes: &[u8]) -> String {
    Encoding::Utf8.decode(bytes)
}

/// As much of the text from its beginning as has at most `bytes_max` bytes, and whether that is less than all.
pub fn shortened(text: &str, bytes_max: usize) -> (&str, bool) {
    if text.len() <= bytes_max {
        return (text, false);
    }
    let mut end = bytes_max;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_become_text() {
        assert_eq!(text(b"caf\xc3\xa9"), "café");
        assert_eq!(text(b"caf\xe9\xff\0"), "caf\u{fffd}\u{fffd}\0");
        assert_eq!(text(b"\xed\xa0\x80"), "\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(Encoding::named(b"ISO-8859-1").decode(b"\xe9ric"), "éric");
        assert_eq!(Encoding::named(b"latin1").decode(b"\xa4"), "¤");
        assert_eq!(Encoding::named(b"ISO_8859-15").decode(b"\xa4"), "€");
        assert_eq!(Encoding::named(b"cp1252").decode(b"\x93x\x94"), "“x”");
        assert_eq!(Encoding::named(b"klingon").decode(b"\xe9"), "\u{fffd}");
    }

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(shortened("aé", 3), ("aé", false));
        assert_eq!(shortened("aé", 2), ("a", true));
        assert_eq!(shortened("é", 0), ("", true));
    }
}
