//! A SCSI disk (SPC-4, SBC-3) in memory.

/// Sense key, code and qualifier of a refused command.
type Sense = [u8; 3];

const UNKNOWN: Sense = [5, 0x20, 0];
const OUT_OF_RANGE: Sense = [5, 0x21, 0];

/// A disk.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Serial number.
    pub serial: &'static str,
    /// Bytes of a block.
    pub block: usize,
    /// Contents.
    pub bytes: Vec<u8>,
    /// SYNCHRONIZE CACHE commands.
    pub flushes: u64,
    /// The write cache is on.
    pub caches: bool,
    /// SYNCHRONIZE CACHE fails with this.
    pub flush_sense: Option<[u8; 3]>,
}

impl Default for Unit {
    /// A disk of 4,096 blocks of 512 bytes, all a5h.
    fn default() -> Self {
        Unit {
            serial: "model-1",
            block: 512,
            bytes: vec![0xa5; 4096 * 512],
            flushes: 0,
            caches: true,
            flush_sense: None,
        }
    }
}

impl Unit {
    /// Executes a command. Returns its data.
    pub(super) fn command(&mut self, cdb: &[u8], data: &[u8]) -> Result<Vec<u8>, Sense> {
        match cdb[0] {
            0x00 => Ok(Vec::new()),
            0x12 => self.inquiry(cdb),
            0xa0 => Ok([vec![0, 0, 0, 8], vec![0; 12]].concat()),
            0x1a => {
                let mut page = vec![0; 4 + 8 + 20];
                (page[3], page[12], page[13], page[14]) = (8, 8, 18, 4 * u8::from(self.caches));
                Ok(page)
            }
            0x9e => {
                let mut answer = vec![0; 32];
                let last = (self.bytes.len() / self.block - 1) as u64;
                answer[..8].copy_from_slice(&last.to_be_bytes());
                answer[8..12].copy_from_slice(&(self.block as u32).to_be_bytes());
                Ok(answer)
            }
            0x88 => self.range(cdb).map(|range| self.bytes[range].to_vec()),
            0x8a => {
                let range = self.range(cdb)?;
                if range.len() != data.len() {
                    return Err([5, 0x1a, 0]);
                }
                self.bytes[range].copy_from_slice(data);
                Ok(Vec::new())
            }
            0x93 => {
                let range = self.range(cdb)?;
                self.bytes[range]
                    .chunks_mut(data.len().max(1))
                    .for_each(|b| b.copy_from_slice(data));
                Ok(Vec::new())
            }
            0x42 => {
                let number = |at: usize| data.get(at..at + 8).and_then(|b| b.try_into().ok());
                let (lba, count) = (number(8).ok_or(UNKNOWN)?, number(16).ok_or(UNKNOWN)?);
                let (lba, count) = (u64::from_be_bytes(lba), u64::from_be_bytes(count) >> 32);
                let start = lba as usize * self.block;
                let range = start..start + count as usize * self.block;
                self.bytes.get_mut(range).ok_or(OUT_OF_RANGE)?.fill(0);
                Ok(Vec::new())
            }
            0x35 => {
                self.flushes += 1;
                self.flush_sense.map_or(Ok(Vec::new()), Err)
            }
            _ => Err(UNKNOWN),
        }
    }

    fn range(&self, cdb: &[u8]) -> Result<core::ops::Range<usize>, Sense> {
        let lba = cdb[2..10].try_into().map_or(0, u64::from_be_bytes) as usize;
        let count = cdb[10..14].try_into().map_or(0, u32::from_be_bytes) as usize;
        let range = lba * self.block..(lba + count) * self.block;
        if range.end > self.bytes.len() { Err(OUT_OF_RANGE) } else { Ok(range) }
    }

    fn inquiry(&self, cdb: &[u8]) -> Result<Vec<u8>, Sense> {
        let mut page = vec![0; 64];
        page[1] = cdb[2];
        match (cdb[1], cdb[2]) {
            (0, 0) => {
                page.truncate(36);
                (page[1], page[2], page[3], page[4]) = (0, 5, 2, 31);
            }
            (1, 0x80) => {
                page.truncate(4);
                page[3] = self.serial.len() as u8;
                page.extend_from_slice(self.serial.as_bytes());
            }
            (1, 0xb0) => {
                page[3] = 60;
                page[20..24].copy_from_slice(&64u32.to_be_bytes());
                page[28..32].copy_from_slice(&1u32.to_be_bytes());
            }
            (1, 0xb2) => {
                page.truncate(8);
                (page[3], page[5]) = (4, 0xc0);
            }
            _ => return Err(UNKNOWN),
        }
        Ok(page)
    }
}
