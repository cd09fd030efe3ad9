//! Numbers of bytes in the unit that fits.

/// As in `1.5 MiB`.
pub fn size(bytes: u64) -> String {
    let units = [(4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")];
    let Some((power, unit)) = units.into_iter().find(|(power, _)| bytes >= 1 << (10 * power)) else {
        return format!("{bytes} bytes");
    };
    let tenths = u128::from(bytes) * 10 / (1 << (10 * power));
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_told_in_the_unit_that_fits() {
        for (bytes, told) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (3 << 30, "3.0 GiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size(bytes), told);
        }
    }
}
