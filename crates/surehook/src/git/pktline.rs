//! git's pkt-line framing and its side-bands. Pure: bytes in, enums out, whatever way the bytes are cut.
//!
//! The rules are those of gitprotocol-common(5): four hex digits give the length with themselves included; `0000`,
//! `0001` and `0002` are flush, delimiter and end of response; `0004` is an empty packet; the longest has 65520 bytes.

use bytes::{Buf, Bytes, BytesMut};

/// Longest packet with its header.
pub const PACKET_BYTES_MAX: usize = 65520;
/// The packet that ends a section or an answer.
pub const FLUSH: &[u8] = b"0000";
/// An empty progress packet: keeps the connection alive and prints nothing.
pub const EMPTY_PROGRESS: &[u8] = b"0005\x02";

const HEADER_BYTES: usize = 4;

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// `0000`.
    Flush,
    /// `0001`, protocol v2.
    Delimiter,
    /// `0002`, protocol v2.
    ResponseEnd,
    /// What stood after the header; may be empty.
    Data(Bytes),
}

/// These bytes are not packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a pkt-line header: {0:?}")]
pub struct BadPacket(pub [u8; 4]);

/// What the first byte of a packet says in an answer with side-bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Band {
    /// Band 1: the answer itself.
    Data(Bytes),
    /// Band 2: shown to the person at the client as `remote: …`.
    Progress(Bytes),
    /// Band 3: a last word; the client fails.
    Error(Bytes),
    /// No band that git knows, or none at all.
    Unknown,
}

impl Band {
    /// Takes the payload of one packet apart.
    #[must_use]
    pub fn of(mut payload: Bytes) -> Self {
        if payload.is_empty() {
            return Self::Unknown;
        }
        match payload.get_u8() {
            1 => Self::Data(payload),
            2 => Self::Progress(payload),
            3 => Self::Error(payload),
            _ => Self::Unknown,
        }
    }
}

/// Cuts a stream of bytes into packets. Bytes go in by [`Decoder::push`], packets come out by [`Decoder::next`].
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: BytesMut,
}

impl Decoder {
    /// Adds bytes, cut anywhere.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole packet, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// The bytes at this place are no header. The decoder stays there: each further call says the same.
    #[expect(clippy::should_implement_trait, reason = "None means \"not yet\" here, which an Iterator must not say")]
    pub fn next(&mut self) -> Result<Option<Packet>, BadPacket> {
        let Some(header) = self.buffer.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let (packet_bytes, special) = match packet_length(*header)? {
            Length::Special(packet) => (HEADER_BYTES, Some(packet)),
            Length::Data(packet_bytes) => (packet_bytes, None),
        };
        if self.buffer.len() < packet_bytes {
            return Ok(None);
        }
        let mut packet = self.buffer.split_to(packet_bytes).freeze();
        packet.advance(HEADER_BYTES);
        Ok(Some(special.unwrap_or(Packet::Data(packet))))
    }

    /// True when no half packet is waiting.
    #[must_use]
    pub fn is_at_boundary(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The bytes that are no packet yet; the decoder is empty afterwards.
    #[must_use]
    pub fn take_rest(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }
}

/// Puts a header before `payload`, which must be at most [`PACKET_BYTES_MAX`] less the header; what is longer is cut.
#[must_use]
pub fn packet(payload: &[u8]) -> Bytes {
    let payload = &payload[..payload.len().min(PACKET_BYTES_MAX - HEADER_BYTES)];
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend_from_slice(format!("{:04x}", HEADER_BYTES + payload.len()).as_bytes());
    bytes.extend_from_slice(payload);
    bytes.into()
}

/// A line for the person at the client (band 2).
#[must_use]
pub fn progress(line: &str) -> Bytes {
    packet(&[b"\x02", line.as_bytes(), b"\n"].concat())
}

/// A last word to the client (band 3), after which it fails.
#[must_use]
pub fn fatal(line: &str) -> Bytes {
    packet(&[b"\x03", line.as_bytes(), b"\n"].concat())
}

/// Puts a packet back as it was on the wire.
#[must_use]
pub fn encode(packet_read: &Packet) -> Bytes {
    match packet_read {
        Packet::Flush => Bytes::from_static(FLUSH),
        Packet::Delimiter => Bytes::from_static(b"0001"),
        Packet::ResponseEnd => Bytes::from_static(b"0002"),
        Packet::Data(payload) => packet(payload),
    }
}

enum Length {
    Special(Packet),
    Data(usize),
}

fn packet_length(header: [u8; HEADER_BYTES]) -> Result<Length, BadPacket> {
    let mut length = 0_usize;
    for digit in header {
        let value = char::from(digit).to_digit(16).ok_or(BadPacket(header))?;
        length = length * 16 + value as usize;
    }
    match length {
        0 => Ok(Length::Special(Packet::Flush)),
        1 => Ok(Length::Special(Packet::Delimiter)),
        2 => Ok(Length::Special(Packet::ResponseEnd)),
        HEADER_BYTES..=PACKET_BYTES_MAX => Ok(Length::Data(length)),
        _ => Err(BadPacket(header)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decode(chunks: &[&[u8]]) -> (Vec<Packet>, Result<bool, BadPacket>) {
        let (mut decoder, mut packets) = (Decoder::default(), Vec::new());
        for chunk in chunks {
            decoder.push(chunk);
            loop {
                match decoder.next() {
                    Ok(Some(packet)) => packets.push(packet),
                    Ok(None) => break,
                    Err(error) => return (packets, Err(error)),
                }
            }
        }
        (packets, Ok(decoder.is_at_boundary()))
    }

    #[test]
    fn packets_of_each_kind() {
        let (packets, end) = decode(&[b"0000000100020004", b"0006a", b"b00"]);
        assert_eq!(
            packets,
            [
                Packet::Flush,
                Packet::Delimiter,
                Packet::ResponseEnd,
                Packet::Data(Bytes::new()),
                Packet::Data(Bytes::from_static(b"ab"))
            ]
        );
        assert_eq!(end, Ok(false));
    }

    #[test]
    fn what_is_no_packet() {
        for bytes in [b"0003", b"fff1", b"ffff", b"00g0", b"PACK", b"+005", b" 005"] {
            assert_eq!(decode(&[bytes]).1, Err(BadPacket(*bytes)));
        }
        assert_eq!(decode(&[b"fff0"]).1, Ok(false));
    }

    #[test]
    fn bands() {
        assert_eq!(Band::of(Bytes::from_static(b"\x01a")), Band::Data(Bytes::from_static(b"a")));
        assert_eq!(Band::of(Bytes::from_static(b"\x02")), Band::Progress(Bytes::new()));
        assert_eq!(Band::of(Bytes::from_static(b"\x03e")), Band::Error(Bytes::from_static(b"e")));
        assert_eq!(Band::of(Bytes::from_static(b"\x04e")), Band::Unknown);
        assert_eq!(Band::of(Bytes::new()), Band::Unknown);
        assert_eq!(packet(b"\x02"), EMPTY_PROGRESS);
        assert_eq!(packet(&vec![b'a'; 70_000]).len(), PACKET_BYTES_MAX);
    }

    fn any_packet() -> impl Strategy<Value = Packet> {
        prop_oneof![
            Just(Packet::Flush),
            Just(Packet::Delimiter),
            Just(Packet::ResponseEnd),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(|bytes| Packet::Data(bytes.into())),
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 1_usize..50) {
            let whole = decode(&[&bytes]);
            let pieces = decode(&bytes.chunks(cut).collect::<Vec<_>>());
            prop_assert_eq!(whole, pieces);
        }

        #[test]
        fn what_was_encoded_comes_back(packets in prop::collection::vec(any_packet(), 0..20), cut in 1_usize..50) {
            let bytes = packets.iter().map(encode).collect::<Vec<_>>().concat();
            let (read, end) = decode(&bytes.chunks(cut).collect::<Vec<_>>());
            prop_assert_eq!(read, packets);
            prop_assert_eq!(end, Ok(true));
        }
    }
}
