//! Capture files: the classic libpcap format, little-endian, microseconds, Ethernet.

use std::path::Path;

/// Writes the frames, all at time 0.
pub fn write(path: &Path, frames: &[Vec<u8>]) {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 262_144, 1] {
        out.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [0, 0, frame.len() as u32, frame.len() as u32] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    std::fs::write(path, out).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Reads all whole frames; panics when the file is no such capture.
pub fn read(path: &Path) -> Vec<Vec<u8>> {
    let data = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| data.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    assert!(matches!(word(0), Some(0xa1b2_c3d4 | 0xa1b2_3c4d)), "{} is no capture file", path.display());
    let (mut frames, mut at) = (Vec::new(), 24);
    while let Some(len) = word(at + 8)
        && let Some(frame) = data.get(at + 16..at + 16 + len as usize)
    {
        frames.push(frame.to_vec());
        at += 16 + len as usize;
    }
    frames
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_written_is_read() {
        let dir = crate::scratch();
        let frames = vec![vec![1; 60], vec![2; 9000], vec![]];
        super::write(&dir.path().join("x"), &frames);
        assert_eq!(super::read(&dir.path().join("x")), frames);
    }
}
