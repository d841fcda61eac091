//! The pictures, and the figures of their points.

use crate::picture::{Axis, Line, Picture, Point, Scale, Side};

/// All pictures.
pub const PICTURES: &[Picture] = &[
    Picture {
        name: "cost-by-block-size",
        title: "Cost of a read at the server by its size, eight in flight",
        x: Axis { label: "block size, KiB", scale: Scale::Doubling },
        y: Axis { label: "instructions", scale: Scale::Decades },
        lines: &[
            Line { name: "Linux", side: Side::Linux, points: BLOCKS },
            Line { name: "Isthmus", side: Side::Isthmus, points: BLOCKS },
        ],
    },
    Picture {
        name: "cost-by-sessions",
        title: "Cost of a 4 KiB read by the number of sessions",
        x: Axis { label: "sessions", scale: Scale::Doubling },
        y: Axis { label: "instructions, relative to one session", scale: Scale::Linear },
        lines: &[
            Line {
                name: "all sessions active",
                side: Side::Figure,
                points: &[
                    Point::constant(1.0, 1.0),
                    Point::of(4.0, "scale", "read4k_4_active_sessions_ratio"),
                    Point::of(16.0, "scale", "read4k_16_active_sessions_ratio"),
                    Point::of(64.0, "scale", "read4k_64_active_sessions_ratio"),
                ],
            },
            Line {
                name: "one active, the others idle",
                side: Side::Figure,
                points: &[
                    Point::constant(1.0, 1.0),
                    Point::of(4.0, "scale", "read4k_beside_3_idle_sessions_ratio"),
                    Point::of(16.0, "scale", "read4k_beside_15_idle_sessions_ratio"),
                    Point::of(64.0, "scale", "read4k_beside_63_idle_sessions_ratio"),
                ],
            },
        ],
    },
    Picture {
        name: "cost-by-connections",
        title: "Cost beside idle connections",
        x: Axis { label: "idle connections", scale: Scale::Linear },
        y: Axis { label: "instructions, relative to none", scale: Scale::Linear },
        lines: &[
            Line {
                name: "TCP echo of 64 bytes",
                side: Side::Figure,
                points: &[
                    Point::constant(0.0, 1.0),
                    Point::of(250.0, "scale", "tcp_echo_250_connections_ratio"),
                    Point::of(500.0, "scale", "tcp_echo_500_connections_ratio"),
                    Point::of(1000.0, "scale", "tcp_echo_1000_connections_ratio"),
                ],
            },
            Line {
                name: "relayed round of 64 bytes",
                side: Side::Figure,
                points: &[
                    Point::constant(0.0, 1.0),
                    Point::of(250.0, "scale", "relay_250_connections_ratio"),
                    Point::of(500.0, "scale", "relay_500_connections_ratio"),
                    Point::of(1000.0, "scale", "relay_1000_connections_ratio"),
                ],
            },
            Line {
                name: "SMC-R connection",
                side: Side::Figure,
                points: &[
                    Point::constant(0.0, 1.0),
                    Point::of(250.0, "scale", "smc_connect_250_connections_ratio"),
                    Point::of(500.0, "scale", "smc_connect_500_connections_ratio"),
                    Point::of(1000.0, "scale", "smc_connect_1000_connections_ratio"),
                ],
            },
        ],
    },
];

const BLOCKS: &[Point] = &[
    Point::of(4.0, "rnbd", "read4k_qd8_ratio"),
    Point::of(16.0, "rnbd", "read16k_ratio"),
    Point::of(32.0, "rnbd", "read32k_ratio"),
    Point::of(64.0, "rnbd", "read64k_ratio"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;

    #[test]
    fn points_are_figures_of_the_table() {
        for picture in PICTURES {
            for (name, key) in
                picture.lines.iter().flat_map(|line| line.points).filter_map(|p| p.figure)
            {
                assert!(suite(name).and_then(|suite| suite.figure(key)).is_some(), "{name} {key}");
            }
        }
    }
}
