//! Goal: over branches of a source with 50 connections no byte of the source's is lost, doubled or
//! changed, and none of its connections ends. In a child every one of them ends, soon, whether it
//! was idle, half closed by either side, from outside, of IPv6, or full of data. So do the source's
//! when it is rolled back. The child's addresses and routes are its source's.
//!
//! Method: numbers that count up, in both directions, which each receiver compares; what is idle
//! speaks at the end. A thread in the guest notes the time every few milliseconds, so the notes of
//! source and child are the same up to the branch point, and tell it by the guest's own clock.
//! The child's connections are watched by the kernel's word on each. Breaks when a probe is lost
//! or disturbs the source, or the gateway writes while a guest is paused.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forkd_testkit::{Guest, Lab, SOON, block_on};
use forkd_types::network::{NetworkLeave, NetworkPolicy};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const IDLE: usize = 20;
const IPV6: usize = 8;
const HALF_CLOSED: usize = 5;
const INBOUND: usize = 8;
const COUNTING: usize = 2;
const ALL: usize = IDLE + IPV6 + 2 * HALF_CLOSED + INBOUND + 2 * COUNTING;

/// In the guest: its hardware address, its routes, its IPv6 addresses, its resolver.
const PLACE: &str = "cd /proc/net; cat /sys/class/net/eth0/address route if_inet6 /etc/resolv.conf";

/// In the guest: the connections, those who count, and who watches.
const TOOLS: &str = r#"
import collections, errno, json, select, socket, struct, threading, time
V4, V6 = ('10.42.0.1', PORT), ('fd66:6f72:6b64::1', PORT)
watched, ended, ticks = {}, {}, collections.deque(maxlen=20000)
received, given, wrong, stop = {}, {}, [], threading.Event()
poller = select.poll()
def watch():
    while True:
        for fd, _ in poller.poll(2):
            now = time.monotonic_ns()
            error = watched[fd].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            # Without one, whoever uses the connection has been told.
            if error: ended[fd] = (now, error)
            poller.unregister(fd)
        ticks.append(time.monotonic_ns())
def note(connection):
    watched[connection.fileno()] = connection
    poller.register(connection, 0)
    return connection
def failed(connection, error):
    wrong.append(repr(error))
    now = time.monotonic_ns()
    if error.errno == errno.ECONNRESET: ended[connection.fileno()] = (now, error.errno)
def dial(to, role):
    connection = socket.create_connection(to, 120)
    connection.settimeout(None)
    connection.sendall(role)
    assert connection.recv(1) == b'k'
    return note(connection)
def read_numbers(connection):
    due, rest = 0, b''
    try:
        while data := connection.recv(65536):
            rest += data
            whole = len(rest) // 4
            for number in struct.unpack(f'>{whole}I', rest[:whole * 4]):
                if number != due: wrong.append((number, due))
                due += 1
            rest = rest[whole * 4:]
            received[connection] = due
    except OSError as error: failed(connection, error)
def write_numbers(connection):
    due = 0
    try:
        while not stop.is_set():
            connection.sendall(struct.pack('>64I', *range(due, due + 64)))
            due += 64
            time.sleep(0.002)
        given[connection] = due
    except OSError as error: failed(connection, error)
def listen():
    server = socket.create_server(('0.0.0.0', 9000))
    while True:
        connection = server.accept()[0]
        inbound.append(note(connection))
        connection.sendall(b'k')
inbound, workers = [], []
def begin():
    global idle, theirs, ours
    threading.Thread(target=listen, daemon=True).start()
    idle = [dial(V4, b'i') for _ in range(IDLE)] + [dial(V6, b'i') for _ in range(IPV6)]
    theirs = [dial(V4, b'h') for _ in range(HALF)]
    ours = [dial(V4, b'i') for _ in range(HALF)]
    for connection in ours: connection.shutdown(socket.SHUT_WR)
    for role, work in [(b'd', read_numbers), (b'u', write_numbers)]:
        for _ in range(COUNTING):
            worker = threading.Thread(target=work, args=[dial(V4, role)])
            worker.start(), workers.append(worker)
    threading.Thread(target=watch, daemon=True).start()
def ask(connection, word):
    connection.settimeout(120)
    connection.sendall(word)
    return connection.recv(1) == word
def end():
    stop.set()
    lively = sum(ask(connection, b'x') for connection in idle)
    for connection in theirs: connection.sendall(b'x')
    return lively
def counts():
    for worker in workers: worker.join(120)
    for connection in given: connection.shutdown(socket.SHUT_WR)
    told = {struct.unpack('>I', connection.recv(4))[0] for connection in given}
    least = min(given.values()), min(received.values())
    return [told == set(given.values()), *least, wrong, len(ended)]
def times():
    # One copy: the watcher goes on while this runs.
    all_ended = list(ended.copy().values())
    last = max((at for at, _ in all_ended), default=0)
    known = [tick for tick in ticks.copy() if tick <= last + 10**9][-2000:]
    return json.dumps([all_ended, known])
def between(first, last):
    return json.dumps([tick for tick in ticks.copy() if first <= tick <= last])
"#;

/// The other end of the guest's connections, which say what they are for.
fn serve(stop: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let stop = Arc::clone(&stop);
            // A child's connections are none of those that count.
            std::thread::spawn(move || play(stream, &stop).ok());
        }
    });
    port
}

fn play(mut stream: TcpStream, stop: &AtomicBool) -> std::io::Result<()> {
    let mut role = [0];
    stream.read_exact(&mut role)?;
    stream.write_all(b"k")?;
    match role[0] {
        b'd' => {
            for numbers in (0u32..).step_by(64).map(|first| first..first + 64) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                stream.write_all(&numbers.flat_map(u32::to_be_bytes).collect::<Vec<_>>())?;
                std::thread::sleep(Duration::from_millis(2));
            }
            stream.shutdown(Shutdown::Write)?;
        }
        b'u' => {
            let (mut due, mut number) = (0u32, [0; 4]);
            while stream.read_exact(&mut number).is_ok() {
                assert_eq!(u32::from_be_bytes(number), due, "what the source sends");
                due += 1;
            }
            stream.write_all(&due.to_be_bytes())?;
        }
        b'h' => stream.shutdown(Shutdown::Write)?,
        _ => {}
    }
    // Bytes come back; who has finished is told one more when all is over.
    let mut byte = [0];
    while stream.read(&mut byte)? == 1 {
        if role[0] == b'i' {
            stream.write_all(&byte)?;
        }
    }
    while role[0] == b'i' && !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// How long after the branch point each connection of a child ended, in milliseconds of its clock,
/// and how; and when the watcher noted the time there first.
async fn ends(source: &Guest<'_>, child: &Guest<'_>) -> (Vec<(f64, i32)>, f64) {
    type Told = (Vec<(u64, i32)>, Vec<u64>);
    let parse = |text: String| text.trim_matches('\'').to_owned();
    let begun = Instant::now();
    let (ended, ticks): Told = loop {
        let told: Told = serde_json::from_str(&parse(child.eval("times()").await)).unwrap();
        if told.0.len() == ALL {
            break told;
        }
        assert!(begun.elapsed() < SOON, "{} of {ALL} connections have ended", told.0.len());
    };
    let [first, last] = [ticks.first(), ticks.last()].map(|tick| tick.unwrap());
    let same = source.eval(&format!("between({first}, {last})")).await;
    let of_source: BTreeSet<u64> = serde_json::from_str(&parse(same)).unwrap();
    let common = ticks.iter().filter(|tick| of_source.contains(tick)).max();
    let branch_point = *common.expect("the child has notes of its source");
    let millis = |at: u64| Duration::from_nanos(at - branch_point).as_secs_f64() * 1e3;
    let own = ticks.iter().find(|tick| **tick > branch_point);
    let first = millis(*own.expect("the watcher goes on"));
    (ended.into_iter().map(|(at, error)| (millis(at), error)).collect(), first)
}

async fn play_branches(branches: usize) {
    let lab = Lab::with_config(&Lab::hot_directory(), |config| {
        config.network = NetworkLeave::Any;
    })
    .await;
    let stop = Arc::new(AtomicBool::new(false));
    let port = serve(Arc::clone(&stop));
    let source = lab.python().await;
    let allow_out = vec![format!("host:{port}").parse().unwrap()];
    let policy = NetworkPolicy { allow_out, ..NetworkPolicy::default() };
    lab.engine.set_network(&source.id, policy, None).await.unwrap();
    let mut tools = TOOLS.to_owned();
    let numbers = [("PORT", usize::from(port)), ("IDLE", IDLE), ("IPV6", IPV6)];
    for (name, number) in numbers.into_iter().chain([("HALF", HALF_CLOSED), ("COUNTING", COUNTING)])
    {
        tools = tools.replace(name, &number.to_string());
    }
    source.eval(&tools).await;
    source.eval("begin()").await;
    let mut inbound = Vec::new();
    for _ in 0..INBOUND {
        let mut stream = lab.engine.dial(&source.id, 9000).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'k');
        inbound.push(stream);
    }
    assert_eq!(source.eval("len(watched)").await, ALL.to_string());
    let place = source.sh(PLACE).await;
    assert!(place.contains("02:66:6f:72:6b:02") && place.contains("nameserver"), "{place}");
    let (mut all, mut firsts, mut last) = (Vec::new(), Vec::new(), None);
    for _ in 0..branches {
        let (tag, mut children) = source.branch_into(1).await;
        let child = children.pop().unwrap();
        let (ends, first) = ends(&source, &child).await;
        all.extend(ends);
        firsts.push(first);
        assert_eq!(child.sh(PLACE).await, place, "where the child is in the network");
        child.remove().await;
        lab.wait_durable(&tag).await;
        last = Some(tag);
    }
    // Half closed by the other end, it ends with EPIPE: POSIX says so.
    let errors: BTreeSet<i32> = all.iter().map(|(_, error)| *error).collect();
    let [reset, pipe] = [Errno::CONNRESET, Errno::PIPE].map(Errno::raw_os_error);
    assert_eq!(errors, [reset, pipe].into(), "how a child's connections end");
    assert_eq!(all.iter().filter(|(_, error)| *error == pipe).count(), branches * HALF_CLOSED);
    report("connections ended", all.into_iter().map(|(millis, _)| millis).collect());
    report("children's watchers ran first", firsts);

    assert_eq!(source.eval("end()").await, (IDLE + IPV6).to_string(), "idle ones speak");
    stop.store(true, Ordering::Relaxed);
    let counts = source.eval("counts()").await;
    let exact = counts.starts_with("[True, ") && counts.ends_with(", [], 0]");
    assert!(exact, "what arrived, what went wrong, what ended: {counts}");
    for mut stream in inbound {
        stream.write_all(b"x").await.unwrap();
    }
    let heard = "sum(connection.recv(1) == b'x' for connection in inbound)";
    assert_eq!(source.eval(heard).await, INBOUND.to_string());

    // Rolled back, the source believes in the same connections as the children.
    lab.engine.roll_back_sandbox(&source.id, &last.unwrap()).await.unwrap();
    let begun = Instant::now();
    while source.eval("len(ended)").await != ALL.to_string() {
        assert!(begun.elapsed() < SOON, "connections outlive a rollback");
    }
}

#[expect(clippy::print_stdout, reason = "figures are for people")]
fn report(what: &str, mut millis: Vec<f64>) {
    millis.sort_by(f64::total_cmp);
    let at = |part: usize| millis[(millis.len() - 1) * part / 100];
    println!(
        "{} {what} after {:.1} ms (median), {:.1} (p99), {:.1} (longest)",
        millis.len(),
        at(50),
        at(99),
        at(100)
    );
}

#[test]
fn fifty_connections_over_five_branches() {
    block_on(play_branches(5));
}

#[test]
#[ignore = "takes minutes: the same, for the figures"]
fn fifty_connections_over_a_hundred_branches() {
    block_on(play_branches(100));
}
