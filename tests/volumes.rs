//! The data of volumes: snapshots by a CSI driver and files by node-agents, and a stock Velero that
//! brings them back.

mod decisions;
mod driver;
mod going;
mod left;
mod played;
mod player;
mod read;
mod warned;
