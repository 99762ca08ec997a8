//! Weighted rendezvous hashing: the order in which a session prefers the backends.
//!
//! Every replica finds the same order from the same names, with no shared state. Removing one of N
//! backends moves the sessions that were at home there and no other.

/// The indices of `backends` (name, weight), best first. Backends with equal scores are ordered by
/// name.
pub fn rank<'a>(key: &[u8], backends: impl IntoIterator<Item = (&'a str, f64)>) -> Vec<usize> {
    let mut scored: Vec<(f64, &str, usize)> = backends
        .into_iter()
        .enumerate()
        .map(|(i, (name, weight))| (score(key, name, weight), name, i))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.into_iter().map(|(_, _, i)| i).collect()
}

/// `-weight / ln(u)` with u uniform in (0, 1): the weighted form, where a backend's share is its
/// weight's share.
fn score(key: &[u8], name: &str, weight: f64) -> f64 {
    let uniform = ((hash(key, name.as_bytes()) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight.max(0.0) / uniform.ln()
}

/// FNV-1a over key, a separator and the name, finished with the murmur3 mixer, so that near keys
/// land far apart.
fn hash(key: &[u8], name: &[u8]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325_u64;
    for &b in key.iter().chain(&[0xff]).chain(name) {
        h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ (h >> 33)
}

#[cfg(test)]
mod tests {
    use super::rank;

    fn home(key: u32, names: &[&str]) -> String {
        names[rank(&key.to_le_bytes(), names.iter().map(|n| (*n, 1.0)))[0]].to_owned()
    }

    #[test]
    fn removing_a_backend_moves_only_its_sessions() {
        let all = ["a", "b", "c", "d"];
        let (mut moved, mut at_c) = (0, 0);
        for key in 0..4000 {
            let before = home(key, &all);
            let after = home(key, &["a", "b", "d"]);
            at_c += u32::from(before == "c");
            moved += u32::from(before != after);
        }
        assert_eq!(moved, at_c);
        assert!((800..1200).contains(&at_c), "{at_c} of 4000 at one of four");
    }

    #[test]
    fn a_weight_of_two_draws_twice_the_sessions() {
        let heavy = (0..6000u32)
            .filter(|k| rank(&k.to_le_bytes(), [("a", 2.0), ("b", 1.0)])[0] == 0)
            .count();
        assert!((3800..4200).contains(&heavy), "{heavy} of 6000");
    }

    #[test]
    fn no_weight_no_sessions() {
        assert!((0..100u32).all(|key| rank(
            &key.to_le_bytes(),
            [("a", 0.0), ("b", 0.1), ("c", -1.0), ("d", f64::NAN)]
        )[0] == 1));
    }

    /// Replicas of two releases stand side by side during an upgrade: a session must not move
    /// because of it.
    #[test]
    fn the_order_is_the_same_in_every_release() {
        let names = ["a", "b", "c", "d", "e"].map(|name| (name, 1.0));
        assert_eq!(rank(b"session-1", names), [2, 0, 1, 3, 4]);
        assert_eq!(rank(b"session-2", names), [4, 1, 2, 3, 0]);
    }

    #[test]
    fn order_does_not_depend_on_the_order_of_the_list() {
        let forward = rank(b"s", [("a", 1.0), ("b", 1.0), ("c", 1.0)]);
        let backward = rank(b"s", [("c", 1.0), ("b", 1.0), ("a", 1.0)]);
        assert_eq!(forward, backward.iter().map(|i| 2 - i).collect::<Vec<_>>());
    }
}
