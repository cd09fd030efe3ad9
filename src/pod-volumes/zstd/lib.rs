//! Stands in for the package of this name, by which rustic_core compresses. That package makes a
//! compressor for each piece of a file, with 3 MiB of tables and buffers, because it does not say
//! how long the piece is: for a small file this takes longer than all else. Here each thread keeps
//! what it has made, and zstd takes tables that are as large as the piece needs. The format is the
//! same.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;

use zstd_safe::{CCtx, CompressionLevel, DCtx, InBuffer, OutBuffer, ResetDirective};

pub mod bulk {
    pub use crate::decompress;
}

pub mod stream {
    pub use crate::{copy_encode, decode_all, encode_all};
}

/// Room is made at once for what says that it has no more bytes than this. A piece of a file has
/// 8 MiB at most.
const ROOM: u64 = 16 << 20;

thread_local! {
    static COMPRESSING: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSING: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

#[must_use]
pub fn compression_level_range() -> RangeInclusive<CompressionLevel> {
    zstd_safe::min_c_level()..=zstd_safe::max_c_level()
}

/// # Errors
/// When there is no memory for it.
pub fn encode_all(source: &[u8], level: CompressionLevel) -> io::Result<Vec<u8>> {
    COMPRESSING.with_borrow_mut(|kept| {
        let mut all = Vec::with_capacity(zstd_safe::compress_bound(source.len()));
        made(kept, CCtx::try_create)?.compress(&mut all, source, level).map_err(failed)?;
        Ok(all)
    })
}

/// # Errors
/// When there is no memory for it.
pub fn copy_encode(source: &[u8], destination: &mut Vec<u8>, level: CompressionLevel) -> io::Result<()> {
    destination.extend(encode_all(source, level)?);
    Ok(())
}

/// # Errors
/// When it is nothing that zstd made.
pub fn decode_all(source: &[u8]) -> io::Result<Vec<u8>> {
    match size(source) {
        Some(size) => decompress(source, size),
        None => DECOMPRESSING.with_borrow_mut(|kept| streamed(made(kept, DCtx::try_create)?, source)),
    }
}

/// # Errors
/// When it is nothing that zstd made, or it has more bytes than `capacity`.
pub fn decompress(source: &[u8], capacity: usize) -> io::Result<Vec<u8>> {
    DECOMPRESSING.with_borrow_mut(|kept| {
        let mut all = Vec::with_capacity(capacity);
        made(kept, DCtx::try_create)?.decompress(&mut all, source).map_err(failed)?;
        Ok(all)
    })
}

/// How many bytes it has, if that is said at its beginning, as in all that is compressed here.
fn size(source: &[u8]) -> Option<usize> {
    let is_one = zstd_safe::find_frame_compressed_size(source) == Ok(source.len());
    let size = zstd_safe::get_frame_content_size(source).ok()?;
    size.filter(|size| is_one && *size <= ROOM).and_then(|size| usize::try_from(size).ok())
}

fn streamed(context: &mut DCtx<'_>, source: &[u8]) -> io::Result<Vec<u8>> {
    // What was before it may have failed.
    context.reset(ResetDirective::SessionOnly).map_err(failed)?;
    let (mut input, mut all) = (InBuffer::around(source), Vec::new());
    let mut left = 1;
    while left > 0 || input.pos() < source.len() {
        all.reserve(DCtx::out_size());
        let before = (input.pos(), all.len());
        left = context
            .decompress_stream(&mut OutBuffer::around_pos(&mut all, before.1), &mut input)
            .map_err(failed)?;
        if (input.pos(), all.len()) == before {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(all)
}

fn made<T>(kept: &mut Option<T>, make: fn() -> Option<T>) -> io::Result<&mut T> {
    if kept.is_none() {
        *kept = make();
    }
    kept.as_mut().ok_or_else(|| ErrorKind::OutOfMemory.into())
}

fn failed(code: usize) -> io::Error {
    io::Error::other(zstd_safe::get_error_name(code))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use zstd_safe::CParameter;

    use super::*;

    const SIZES: [usize; 6] = [0, 1, 4096, 300_000, 8 << 20, (16 << 20) + 1];

    /// Half of it can be made smaller.
    fn bytes(count: usize) -> Vec<u8> {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let noise = |at: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if (at / 1000).is_multiple_of(2) { (state >> 32) as u8 } else { 7 }
        };
        (0..count).map(noise).collect()
    }

    /// As the package of this name does it: how long it is is not said.
    fn encoded_elsewhere(source: &[u8]) -> Vec<u8> {
        let mut context = CCtx::create();
        context.set_parameter(CParameter::ContentSizeFlag(false)).unwrap();
        let mut all = Vec::with_capacity(zstd_safe::compress_bound(source.len()));
        context.compress2(&mut all, source).unwrap();
        all
    }

    #[test]
    fn what_was_compressed_comes_back_whoever_compressed_it() {
        for size in SIZES {
            let bytes = bytes(size);
            for level in [0, 1, -3] {
                let encoded = encode_all(&bytes, level).unwrap();
                assert!(encoded.len() <= size / 4 * 3 + 50, "{size} {level}: {}", encoded.len());
                assert!(decode_all(&encoded).unwrap() == bytes, "{size} {level}");
            }
            assert!(decode_all(&encoded_elsewhere(&bytes)).unwrap() == bytes, "{size}");
        }
        let mut all = vec![2];
        copy_encode(b"some", &mut all, 0).unwrap();
        copy_encode(b" text", &mut all, 0).unwrap();
        assert_eq!((all[0], decode_all(&all[1..]).unwrap().as_slice()), (2, &b"some text"[..]));
    }

    #[test]
    fn what_is_broken_fails_and_what_comes_after_it_does_not() {
        let plain = bytes(300_000);
        for whole in [encode_all(&plain, 0).unwrap(), encoded_elsewhere(&plain)] {
            for end in [0, 3, 20, whole.len() - 1] {
                assert!(decode_all(&whole[..end]).is_err(), "{end}");
                assert!(decode_all(&whole).unwrap() == plain, "{end}");
            }
            let mut changed = whole.clone();
            changed[0] ^= 1;
            assert!(decode_all(&changed).is_err());
            assert!(decompress(&whole, plain.len() - 1).is_err());
            assert!(decompress(&whole, plain.len()).unwrap() == plain);
        }
    }

    #[test]
    fn a_thread_keeps_what_it_compresses_with_and_it_is_small_for_small_pieces() {
        let (plain, kept) = (bytes(4096), || COMPRESSING.with_borrow(|kept| kept.as_ref().map(CCtx::sizeof)));
        std::thread::spawn(move || {
            assert_eq!(kept(), None);
            encode_all(&plain, 0).unwrap();
            let first = kept().unwrap();
            assert!(first < 512 << 10, "{first}");
            encode_all(&plain, 0).unwrap();
            assert_eq!(kept(), Some(first));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn levels_are_those_of_zstd() {
        assert!(compression_level_range().contains(&-7) && compression_level_range().contains(&22));
    }
}
