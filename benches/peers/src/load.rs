//! What is delivered: how many, on how many lanes, to how many endpoints, and the bytes of each. Pure.

use serde::{Deserialize, Serialize};

/// A number of deliveries, spread evenly over lanes, and lanes over endpoints.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// The id of the first; the others follow without a gap.
    pub(crate) first_id: u32,
    pub(crate) deliveries: u32,
    pub(crate) lanes: u32,
    pub(crate) endpoints: u16,
    pub(crate) payload_bytes: usize,
    /// The numbers of the first lane and the first endpoint, so that two loads need not share any.
    pub(crate) first_lane: u32,
    pub(crate) first_endpoint: u16,
}

/// One delivery.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) id: u32,
    pub(crate) lane: u32,
    pub(crate) endpoint: u16,
    /// Its place in its lane, from 0.
    pub(crate) seq: u32,
}

impl Load {
    /// So many on so many lanes, from the first of everything on.
    pub(crate) fn new(deliveries: u32, lanes: u32, endpoints: u16, payload_bytes: u32) -> Self {
        let payload_bytes = payload_bytes as usize;
        Self { first_id: 0, deliveries, lanes, endpoints, payload_bytes, first_lane: 0, first_endpoint: 0 }
    }

    /// The nth of its deliveries, from 0.
    pub(crate) fn item(&self, n: u32) -> Item {
        self.of_id(self.first_id + n)
    }

    /// The delivery with that id, be it of this load or of another with the same lanes and endpoints.
    pub(crate) fn of_id(&self, id: u32) -> Item {
        let place = id % self.lanes;
        let endpoint = self.first_endpoint + u16::try_from(place % u32::from(self.endpoints)).unwrap_or(0);
        Item { id, lane: self.first_lane + place, endpoint, seq: id / self.lanes }
    }

    /// All of its deliveries, in the order of their ids.
    pub(crate) fn items(self) -> impl Iterator<Item = Item> {
        (0..self.deliveries).map(move |n| self.item(n))
    }
}

impl Item {
    /// The body: JSON whose first integers are when it was made, endpoint, id, lane and place, in this order also after
    /// PostgreSQL's jsonb has sorted the keys. The rest is text that does not compress well.
    pub(crate) fn payload(&self, made_ns: u64, bytes: usize) -> String {
        let mut text = format!(
            r#"{{"at":{made_ns},"ep":{},"id":{},"ln":{},"sq":{},"text":""#,
            self.endpoint, self.id, self.lane, self.seq
        );
        let mut state = u64::from(self.id).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        while text.len() + 2 < bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let letter = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[(state & 63) as usize];
            text.push(char::from(letter));
        }
        text.push_str("\"}");
        text
    }
}

/// What a receiver reads of a body: (endpoint, id, lane, place). None if the body is not one of ours.
pub(crate) fn parse(body: &[u8]) -> Option<(u16, u32, u32, u32)> {
    let mut numbers = [0u64; 5];
    let mut bytes = body.iter().copied().peekable();
    for number in &mut numbers {
        while !bytes.peek()?.is_ascii_digit() {
            bytes.next();
        }
        while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
            *number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        }
    }
    let [_, endpoint, id, lane, seq] = numbers;
    Some((endpoint.try_into().ok()?, id.try_into().ok()?, lane.try_into().ok()?, seq.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load::new(100, 20, 10, 1500)
    }

    #[test]
    fn a_receiver_reads_what_was_written() {
        let item = load().item(57);
        let payload = item.payload(1_790_000_000_123_456_789, 1500);
        assert_eq!(payload.len(), 1500);
        assert_eq!(parse(payload.as_bytes()), Some((7, 57, 17, 2)));
    }

    #[test]
    fn it_also_reads_jsonb() {
        let body = br#"{"at": 1, "ep": 2, "id": 3, "ln": 4, "sq": 5, "text": "9"}"#;
        assert_eq!(parse(body), Some((2, 3, 4, 5)));
        assert_eq!(parse(b"hello"), None);
    }

    #[test]
    fn places_in_a_lane_have_no_gap() {
        let of_lane_3: Vec<u32> = load().items().filter(|item| item.lane == 3).map(|item| item.seq).collect();
        assert_eq!(of_lane_3, [0, 1, 2, 3, 4]);
    }
}
