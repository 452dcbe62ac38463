//! SHA-256 (FIPS 180-4) of whole texts: by the processor's own instructions where it has them, else in plain Rust.

const START: [u32; 8] = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
#[rustfmt::skip]
const ROUNDS: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
];

type State = [u32; 8];
type Chunk = [u8; 64];
type Compress = fn(&mut State, &[u8]);

/// The fastest form that this processor has.
pub fn fastest() -> Compress {
    #[cfg(target_arch = "x86_64")]
    if instructions::are_there() {
        return instructions::compress;
    }
    compress
}

/// The first 16 bytes of a text's hash, as two numbers.
pub fn halves(text: &[u8], compress: Compress) -> (i64, i64) {
    let mut state = START;
    let whole = text.len() / 64 * 64;
    compress(&mut state, &text[..whole]);
    let rest = &text[whole..];
    let mut last = [0u8; 128];
    last[..rest.len()].copy_from_slice(rest);
    last[rest.len()] = 0x80;
    let end = if rest.len() < 56 { 64 } else { 128 };
    last[end - 8..end].copy_from_slice(&(text.len() as u64 * 8).to_be_bytes());
    compress(&mut state, &last[..end]);
    let half = |high: u32, low: u32| (u64::from(high) << 32 | u64::from(low)) as i64;
    (half(state[0], state[1]), half(state[2], state[3]))
}

/// The chunks of a text of a multiple of 64 bytes.
fn chunks(text: &[u8]) -> impl Iterator<Item = &Chunk> {
    text.chunks_exact(64).filter_map(|chunk| chunk.try_into().ok())
}

fn compress(state: &mut State, text: &[u8]) {
    for chunk in chunks(text) {
        let mut words = [0u32; 64];
        for (word, four) in words.iter_mut().zip(chunk.chunks_exact(4)) {
            *word = u32::from_be_bytes([four[0], four[1], four[2], four[3]]);
        }
        for place in 16..64 {
            let (near, far) = (words[place - 2], words[place - 15]);
            words[place] = words[place - 16]
                .wrapping_add(far.rotate_right(7) ^ far.rotate_right(18) ^ far >> 3)
                .wrapping_add(words[place - 7])
                .wrapping_add(near.rotate_right(17) ^ near.rotate_right(19) ^ near >> 10);
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        for (word, round) in words.iter().zip(ROUNDS) {
            let first = h
                .wrapping_add(e.rotate_right(6) ^ e.rotate_right(11) ^ e.rotate_right(25))
                .wrapping_add(e & f ^ !e & g)
                .wrapping_add(round)
                .wrapping_add(*word);
            let second = (a.rotate_right(2) ^ a.rotate_right(13) ^ a.rotate_right(22)).wrapping_add(a & b ^ a & c ^ b & c);
            (h, g, f, e, d, c, b, a) = (g, f, e, d.wrapping_add(first), c, b, a, first.wrapping_add(second));
        }
        for (sum, part) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *sum = sum.wrapping_add(part);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod instructions {
    //! Intel's SHA extensions, which AMD has too.

    use super::{chunks, State, ROUNDS};
    use std::arch::x86_64::*;

    pub fn are_there() -> bool {
        is_x86_feature_detected!("sha") && is_x86_feature_detected!("ssse3") && is_x86_feature_detected!("sse4.1")
    }

    pub fn compress(state: &mut State, text: &[u8]) {
        assert!(are_there());
        // SAFETY: the processor has the instructions that the function is compiled for, by the line above.
        unsafe { with_instructions(state, text) }
    }

    /// # Safety
    /// The processor must have the three features.
    #[target_feature(enable = "sha,ssse3,sse4.1")]
    unsafe fn with_instructions(state: &mut State, text: &[u8]) {
        // SAFETY: unaligned loads and stores of 16 bytes each, within the 32 bytes of `state`, the 64 bytes of a chunk
        // and the 256 bytes of ROUNDS.
        unsafe {
            let big_endian = _mm_set_epi64x(0x0c0d_0e0f_0809_0a0b, 0x0405_0607_0001_0203);
            let place: *mut __m128i = state.as_mut_ptr().cast();
            // The instructions take the eight words as (a, b, e, f) and (c, d, g, h).
            let low = _mm_shuffle_epi32(_mm_loadu_si128(place), 0xb1);
            let high = _mm_shuffle_epi32(_mm_loadu_si128(place.add(1)), 0x1b);
            let mut one = _mm_alignr_epi8(low, high, 8);
            let mut two = _mm_blend_epi16(high, low, 0xf0);
            let rounds: *const __m128i = ROUNDS.as_ptr().cast();
            for chunk in chunks(text) {
                let (one_before, two_before) = (one, two);
                let from: *const __m128i = chunk.as_ptr().cast();
                let mut words = [_mm_setzero_si128(); 4];
                for (at, word) in words.iter_mut().enumerate() {
                    *word = _mm_shuffle_epi8(_mm_loadu_si128(from.add(at)), big_endian);
                }
                for four in 0..16 {
                    let sum = _mm_add_epi32(words[four % 4], _mm_loadu_si128(rounds.add(four)));
                    two = _mm_sha256rnds2_epu32(two, one, sum);
                    one = _mm_sha256rnds2_epu32(one, two, _mm_shuffle_epi32(sum, 0x0e));
                    if four < 12 {
                        let (second, third, fourth) = (words[(four + 1) % 4], words[(four + 2) % 4], words[(four + 3) % 4]);
                        let next =
                            _mm_add_epi32(_mm_sha256msg1_epu32(words[four % 4], second), _mm_alignr_epi8(fourth, third, 4));
                        words[four % 4] = _mm_sha256msg2_epu32(next, fourth);
                    }
                }
                one = _mm_add_epi32(one, one_before);
                two = _mm_add_epi32(two, two_before);
            }
            let low = _mm_shuffle_epi32(one, 0x1b);
            let high = _mm_shuffle_epi32(two, 0xb1);
            _mm_storeu_si128(place, _mm_blend_epi16(low, high, 0xf0));
            _mm_storeu_si128(place.add(1), _mm_alignr_epi8(high, low, 8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        let known = [
            ("", 0xe3b0c44298fc1c14u64, 0x9afbf4c8996fb924u64),
            ("abc", 0xba7816bf8f01cfea, 0x414140de5dae2223),
            ("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 0x248d6a61d20638b8, 0xe5c026930c3e6039),
        ];
        for (text, first, second) in known {
            let expected = (first as i64, second as i64);
            assert_eq!(halves(text.as_bytes(), compress), expected);
            assert_eq!(halves(text.as_bytes(), fastest()), expected);
        }
    }

    #[test]
    fn both_forms_are_equal_for_every_length() {
        let text: Vec<u8> = (0..1000u32).map(|byte| (byte * 7 % 251) as u8).collect();
        for length in 0..text.len() {
            assert_eq!(halves(&text[..length], compress), halves(&text[..length], fastest()), "{length}");
        }
    }
}
