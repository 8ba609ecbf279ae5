//! Where everybody is pinned on the papers' server (PhD tables 4.4 and 4.5).

/// Hyper-Switch: one core of each module, two guests a node, nodes in turns; then the other cores. (Two rows of the
/// table name cores twice; the text says how it was meant.)
pub const HYPER_SWITCH: [usize; 32] = [
    31, 29, 23, 21, 15, 13, 7, 5, 27, 25, 19, 17, 11, 9, 3, 1, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2,
    0,
];

/// vhost-net: guests.
pub const VHOST_GUESTS: [usize; 32] = [
    31, 27, 23, 19, 15, 11, 7, 3, 0, 4, 8, 12, 16, 20, 24, 28, 30, 31, 27, 23, 15, 13, 7, 5, 27, 25, 19, 17, 11, 9, 3,
    1,
];

/// vhost-net: a thread for each guest.
pub const VHOST_THREADS: [usize; 32] = [
    29, 25, 21, 17, 13, 9, 5, 1, 2, 6, 10, 14, 18, 22, 26, 30, 29, 25, 21, 17, 13, 9, 5, 1, 2, 6, 10, 14, 18, 22, 26,
    30,
];

/// Driver domain: guests.
pub const NETBACK_GUESTS: [usize; 32] = [
    27, 25, 19, 17, 11, 9, 3, 1, 26, 24, 18, 16, 10, 8, 2, 0, 30, 28, 22, 20, 14, 12, 6, 4, 27, 25, 19, 17, 11, 9, 3, 1,
];

/// Driver domain: its eight virtual CPUs, two a node, on the cores that the table leaves free; the row that names them
/// gives four of them to guests as well, which the text rules out ("dedicated processor cores").
pub const NETBACK_THREADS: [usize; 8] = [31, 29, 23, 21, 15, 13, 7, 5];

/// One pair of guests (table 4.4), and the threads that serve it.
pub const PAIR: [usize; 2] = [31, 29];
/// … the threads.
pub const PAIR_THREADS: [usize; 2] = [27, 25];
/// … the core that is given to the switch where one is dedicated to it.
pub const DEDICATED: usize = 27;
