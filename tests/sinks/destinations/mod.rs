//! Where a record goes, by the real process on real brokers: routes, destinations, declared
//! topology, dead letters, several sinks in one relay; and its form: CloudEvents, sizes, lines.

mod brokers;
mod cloud_events;
mod dead_letters;
mod declare;
mod file;
mod routes;
mod side_by_side;
mod sizes;
mod standard_output;
mod window;
