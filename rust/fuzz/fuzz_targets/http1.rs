//! A response from the wire, whole and cut: the same head, the same payload, the same fault.
#![no_main]

use ferrule_core::http1::{Body, HttpFault, parse_head};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let [size, bytes @ ..] = input else { return };
    let Ok(Some((head, used))) = parse_head(bytes) else { return };
    for at in 0..used {
        assert_eq!(parse_head(&bytes[..at]), Ok(None), "a part of a head is no head");
    }
    let body = &bytes[used..];
    let size = usize::from(*size).max(1);
    assert_eq!(
        read(Body::new(head.framing), &[body]),
        read(Body::new(head.framing), &body.chunks(size).collect::<Vec<_>>())
    );
});

fn read(mut body: Body, reads: &[&[u8]]) -> (Vec<u8>, Result<usize, HttpFault>, bool) {
    let (mut payload, mut left) = (Vec::new(), 0);
    for fragment in reads {
        let mut input = *fragment;
        loop {
            match body.feed(&mut input) {
                Ok(Some(fragment)) => payload.extend_from_slice(fragment),
                Ok(None) => break,
                Err(fault) => return (payload, Err(fault), false),
            }
        }
        assert!(input.is_empty() || body.is_complete());
        left += input.len();
    }
    (payload, Ok(left), body.eof().is_ok())
}
