//! Shared buckets, on real control planes.

mod clouds;
mod courier;
mod executor;
mod gate;
mod hub;
mod identity;
mod legacy;
mod life;
mod migration;
mod people;
mod seeds;
mod settings;
mod site;
