//! Checks that a binary is static and for its architecture, because a wrong one would only fail in
//! a cluster.

use anyhow::{Context as _, ensure};

use crate::Arch;

/// Program header of a loader, which an image from scratch does not have.
const INTERPRETER: u32 = 3;

/// # Errors
/// When the binary is dynamic or for another architecture.
pub fn check(program: &[u8], arch: Arch) -> anyhow::Result<()> {
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "is not a 64-bit little-endian ELF program");
    let wanted = match arch {
        Arch::Amd64 => 62,
        Arch::Arm64 => 183,
    };
    let machine = u16::from_le_bytes(at(program, 18)?);
    ensure!(machine == wanted, "is for machine {machine}, not for {}", arch.name());
    let start = usize::try_from(u64::from_le_bytes(at(program, 32)?))?;
    let size = usize::from(u16::from_le_bytes(at(program, 54)?));
    let count = usize::from(u16::from_le_bytes(at(program, 56)?));
    for header in 0..count {
        let kind = u32::from_le_bytes(at(program, start.saturating_add(header * size))?);
        ensure!(kind != INTERPRETER, "is not static: it asks for a loader");
    }
    Ok(())
}

fn at<const N: usize>(program: &[u8], offset: usize) -> anyhow::Result<[u8; N]> {
    let bytes = program.get(offset..).and_then(|rest| rest.first_chunk::<N>());
    bytes.copied().context("is cut off")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header, and one program header of this kind.
    fn elf(machine: u16, kind: u32) -> Vec<u8> {
        let mut elf = vec![0; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18..20].copy_from_slice(&machine.to_le_bytes());
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64..68].copy_from_slice(&kind.to_le_bytes());
        elf
    }

    #[test]
    fn static_programs_of_the_right_kind_pass() {
        check(&elf(62, 1), Arch::Amd64).unwrap();
        check(&elf(183, 1), Arch::Arm64).unwrap();
    }

    #[test]
    fn others_are_told_what_is_wrong() {
        let cases = [
            (elf(62, 3), "it asks for a loader"),
            (elf(183, 1), "is for machine 183, not for amd64"),
            (b"#!/bin/sh".to_vec(), "is not a 64-bit little-endian ELF program"),
            (elf(62, 1)[..64].to_vec(), "is cut off"),
            (elf(62, 1)[..20].to_vec(), "is cut off"),
        ];
        for (program, wanted) in cases {
            let said = check(&program, Arch::Amd64).unwrap_err().to_string();
            assert!(said.contains(wanted), "{said}");
        }
    }
}
