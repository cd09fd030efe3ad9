//! Shared buckets, on real control planes.

mod gate;
mod hub;
