//! Shared buckets, on real control planes.

mod courier;
mod gate;
mod hub;
mod life;
mod migration;
mod site;
