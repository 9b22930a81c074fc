//! The content of a message: its body as the producer gave it, decompressed if the client compressed it.
//!
//! Bit 0 of `sys_flag` says that the body is compressed, bits 8 to 10 with what: 0 and 3 zlib, 1 an LZ4 frame, 2 a
//! Zstandard frame. RocketMQ 4 has only zlib, and leaves these bits 0. Source: apache/rocketmq,
//! common/sysflag/MessageSysFlag.java, common/compression/CompressionType.java.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};
use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use crate::record::Record;

const COMPRESSED: i32 = 1;

/// Why there is no content. The texts are part of the interface.
pub type Reason = &'static str;
pub const TOO_LARGE: Reason = "the decompressed body is larger than the limit";
pub const TRUNCATED: Reason = "the compressed body ends early";
pub const UNKNOWN: Reason = "the body has an unknown type of compression";
const NO_ZLIB: Reason = "the body cannot be decompressed with zlib";
const NO_LZ4: Reason = "the body cannot be decompressed with lz4";
const NO_ZSTD: Reason = "the body cannot be decompressed with zstd";

/// Decompresses one body after the other, with the same state and memory.
pub struct Contents {
    limit: usize,
    out: Vec<u8>,
    zlib: Option<Decompress>,
    zstd: Option<Decoder<'static>>,
}

impl Contents {
    /// `limit`: bytes of a decompressed body; a larger one is refused before it is complete.
    pub fn new(limit: usize) -> Contents {
        Contents {
            limit,
            out: vec![],
            zlib: None,
            zstd: None,
        }
    }

    pub fn of<'c>(&'c mut self, record: &Record<'c>) -> Result<&'c [u8], Reason> {
        let (flag, body) = (record.sys_flag(), record.body());
        if flag & COMPRESSED == 0 {
            return Ok(body);
        }
        self.out.clear();
        match (flag >> 8) & 7 {
            0 | 3 => self.unzlib(body)?,
            1 => self.unlz4(body)?,
            2 => self.unzstd(body)?,
            _ => return Err(UNKNOWN),
        }
        Ok(&self.out)
    }

    /// Makes room for more of the result. One byte above the limit shows that it is too large.
    fn grow(&mut self) -> Result<(), Reason> {
        let length = self.out.len();
        if length > self.limit {
            return Err(TOO_LARGE);
        }
        let more = length.max(4096).min(self.limit + 1 - length);
        self.out.reserve_exact(more);
        Ok(())
    }

    fn checked(&self) -> Result<(), Reason> {
        if self.out.len() > self.limit {
            Err(TOO_LARGE)
        } else {
            Ok(())
        }
    }

    fn unzlib(&mut self, body: &[u8]) -> Result<(), Reason> {
        self.zlib.get_or_insert_with(|| Decompress::new(true)).reset(true);
        loop {
            self.grow()?;
            let zlib = self.zlib.as_mut().expect("it was made above");
            let rest = &body[zlib.total_in() as usize..];
            match zlib.decompress_vec(rest, &mut self.out, FlushDecompress::Finish) {
                Ok(Status::StreamEnd) => return self.checked(),
                Ok(Status::Ok | Status::BufError) if self.out.len() < self.out.capacity() => return Err(TRUNCATED),
                Ok(Status::Ok | Status::BufError) => {}
                Err(_) => return Err(NO_ZLIB),
            }
        }
    }

    fn unlz4(&mut self, body: &[u8]) -> Result<(), Reason> {
        let mut rest = body;
        loop {
            let (frame, behind) = lz4_frame(rest).ok_or(TRUNCATED)?;
            let left = (self.limit + 1 - self.out.len()) as u64;
            lz4_flex::frame::FrameDecoder::new(frame)
                .take(left)
                .read_to_end(&mut self.out)
                .map_err(|_| NO_LZ4)?;
            self.checked()?;
            if behind.is_empty() {
                return Ok(());
            }
            rest = behind;
        }
    }

    fn unzstd(&mut self, body: &[u8]) -> Result<(), Reason> {
        if self.zstd.is_none() {
            self.zstd = Some(Decoder::new().map_err(|_| NO_ZSTD)?);
        }
        let zstd = self.zstd.as_mut().expect("it was made above");
        zstd.reinit().map_err(|_| NO_ZSTD)?;
        let mut input = InBuffer::around(body);
        let mut left = usize::MAX;
        while input.pos() < body.len() || left != 0 {
            self.grow()?;
            let length = self.out.len();
            let mut output = OutBuffer::around_pos(&mut self.out, length);
            let zstd = self.zstd.as_mut().expect("it was made above");
            left = zstd.run(&mut input, &mut output).map_err(|_| NO_ZSTD)?;
            let is_full = output.pos() == output.capacity();
            if left != 0 && input.pos() == body.len() && !is_full {
                return Err(TRUNCATED);
            }
        }
        self.checked()
    }
}

/// The first LZ4 frame and what follows it; None: the frame is not complete. The decoder takes the end of the bytes for
/// the end of a frame, so a body that lost its end would be a shorter one without an error.
///
/// magic 4, flags 1, block size 1, content size 8 if flag 3, dictionary 4 if flag 0, checksum 1; blocks: size 4 (bit 31:
/// not compressed), bytes, checksum 4 if flag 4; zero 4, checksum 4 if flag 2.
fn lz4_frame(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let flags = *bytes.get(4)?;
    let has = |bit: u8, size: usize| if flags & (1 << bit) == 0 { 0 } else { size };
    let mut at = 6 + has(3, 8) + has(0, 4) + 1;
    loop {
        let size = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().expect("four bytes"));
        at += 4;
        if size == 0 {
            return bytes.split_at_checked(at + has(2, 4));
        }
        at += (size & 0x7FFF_FFFF) as usize + has(4, 4);
    }
}
