//! Formats from disks, operators and servers: releases, partition tables, PEM, the answer of an HTTP server.

use appliance::config::partitions::{self, LOOK};
use net::answer::Answer;
use net::tls::Pair;
use release::{Header, Record, newest};

/// Headers of releases and records of slots: parsing and emitting yields the same bytes.
pub fn release(data: &[u8]) {
    if let Ok(header) = Header::parse(data) {
        let again = Header::parse(&header.emit()).expect("an emitted header or record is parsed");
        assert_eq!((again.signed(), again.version()), (header.signed(), header.version()));
        assert!(header.version().bytes().all(|byte| byte.is_ascii_graphic()));
        // A random signature is invalid.
        let key: [u8; 32] = data.first_chunk().copied().unwrap_or_default();
        let _ = header.verify(&key);
    }
    let (one, two) = data.split_at(data.len() / 2);
    for mut record in [one, two, data].into_iter().filter_map(Record::parse) {
        let again = Record::parse(&record.emit()).expect("an emitted header or record is parsed");
        assert_eq!(again, record);
        let _ = record.choose();
        record.confirm();
        assert!(Record::parse(&record.emit()).is_some());
    }
    let _ = newest([one, two]);
}

pub fn release_corpus() -> Vec<Vec<u8>> {
    let header = Header::new(b"an image", 1_800_000_000, "1.2.3", [7; 32]).emit().to_vec();
    let mut record = Record::default();
    record.try_once(release::Slot::B, true);
    let record = record.emit().to_vec();
    vec![header.clone(), record.clone(), [&record[..], &record].concat(), header[..192].to_vec()]
}

/// Partition tables: found partitions are within the disk.
pub fn partitions(data: &[u8]) {
    let (sectors, start) = match data.split_first_chunk() {
        Some((sectors, start)) => (u64::from_le_bytes(*sectors), start),
        None => (0, data),
    };
    let look = partitions::read(start, sectors);
    for stretch in [look.config, look.slots].into_iter().flatten() {
        let end = stretch.first.checked_add(stretch.sectors);
        assert!(end.is_some_and(|end| end <= sectors), "{stretch:?} of {sectors}");
        assert!(stretch.first > 0 && stretch.sectors > 0);
    }
}

pub fn partitions_corpus() -> Vec<Vec<u8>> {
    // Two entries: an EFI system partition, and a partition of slots; in units of 512 bytes and of 4 KiB.
    let table = |block: usize, last: u64| {
        let mut start = vec![0; LOOK];
        let mut entries = vec![0; 2 * 128];
        let efi: [u8; 16] = [
            0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9,
            0x3b,
        ];
        entries[..16].copy_from_slice(&efi);
        entries[128..144].copy_from_slice(&release::layout::partition_type_on_disk());
        for (n, entry) in entries.chunks_mut(128).enumerate() {
            entry[32..40].copy_from_slice(&(64 + 64 * n as u64).to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92u32.to_le_bytes());
        header[72..80].copy_from_slice(&2u64.to_le_bytes());
        header[80..84].copy_from_slice(&2u32.to_le_bytes());
        header[84..88].copy_from_slice(&128u32.to_le_bytes());
        let crc = |bytes: &[u8]| crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC).checksum(bytes);
        header[88..92].copy_from_slice(&crc(&entries).to_le_bytes());
        let whole = crc(&header).to_le_bytes();
        header[16..20].copy_from_slice(&whole);
        start[block..block + 92].copy_from_slice(&header);
        start[2 * block..2 * block + 256].copy_from_slice(&entries);
        [&2048u64.to_le_bytes()[..], &start].concat()
    };
    vec![table(512, 200), table(4096, 200), table(512, u64::MAX), vec![0; 100]]
}

/// PEM of certificates and keys, and pairs in their stored form.
pub fn pem(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (certificates, key) = text.split_once('\0').unwrap_or((&text, &text));
    if let Ok(pair) = Pair::from_pem(certificates, key) {
        let kept = Pair::from_bytes(&pair.to_bytes()).expect("a stored pair is parsed");
        assert_eq!(
            (kept.certificate(), kept.fingerprint()),
            (pair.certificate(), pair.fingerprint())
        );
        let _ = (pair.certificate_pem(), pair.pin());
    }
    if let Some(pair) = Pair::from_bytes(data) {
        assert!(Pair::from_bytes(&pair.to_bytes()).is_some());
    }
}

pub fn pem_corpus() -> Vec<Vec<u8>> {
    let mut seed = netsim::Rng::new(5);
    let pair = Pair::self_signed("gw-1", &["10.0.0.1".parse().expect("an address")], &mut |into| {
        into.iter_mut().for_each(|byte| *byte = seed.within(0..256) as u8);
    });
    let certificate = pair.certificate_pem();
    let key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg\n-----END PRIVATE KEY-----\n";
    vec![
        pair.to_bytes(),
        format!("{certificate}\0{key}").into_bytes(),
        format!("{certificate}{certificate}\0{}", key.replace('\n', " ")).into_bytes(),
        b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n".to_vec(),
    ]
}

/// The answer to a request for a file, in pieces: its reader never returns more than the announced length.
pub fn answer(data: &[u8]) {
    let Some((&piece, data)) = data.split_first() else { return };
    let mut answer = Answer::new();
    let (mut given, mut announced) = (0, None);
    for bytes in data.chunks(usize::from(piece).max(1)) {
        if answer.hear(bytes).is_err() {
            return;
        }
        let mut into = [0; 64];
        given += answer.take(&mut into) as u64;
        let left = answer.left();
        let whole = left.map(|left| left + given + answer.waiting() as u64);
        assert!(announced.is_none() || announced == whole, "the length changed");
        announced = announced.or(whole);
        assert_eq!(answer.is_whole(), left == Some(0));
    }
}

pub fn answer_corpus() -> Vec<Vec<u8>> {
    [
        "\u{1}HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer: x\r\n\r\nabcdefgh",
        "\u{7f}HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nabc",
        "\u{10}HTTP/1.0 200\r\ncontent-length:  7 \r\n\r\n0123456",
        "\u{20}HTTP/1.1 404 Not Found\r\n\r\n",
        "\u{20}HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}
