//! Goal: processes, open files with buffered data, pipes and a TCP connection between two guest
//! processes go on in the child as if nothing had happened.
//!
//! Method: a Python program holds a file open with unflushed text, a pipe to a subprocess that
//! answers lines, and a TCP connection to another process that counts requests. After the branch,
//! source and child each use all three. Breaks when any of them is lost, reset, or shared.

use forkd_testkit::{Lab, block_on};

const PROGRAM: &str = r"
import os, socket, subprocess, sys
server = subprocess.Popen([sys.executable, '-c', '''
import socket
listener = socket.create_server((\'127.0.0.1\', 7007))
connection, _ = listener.accept()
number = 0
for line in connection.makefile(\'r\'):
    number += 1
    connection.sendall(f\'{number} {line}\'.encode())
'''])
piped = subprocess.Popen([sys.executable, '-u', '-c',
    'import sys\nfor n, line in enumerate(sys.stdin): print(n, line, end=str())'],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
while True:
    try: client = socket.create_connection(('127.0.0.1', 7007)); break
    except OSError: pass
stream = client.makefile('r')
def tcp(word):
    client.sendall(word.encode() + b'\n')
    return stream.readline().strip()
def pipe(word):
    piped.stdin.write(word + '\n'); piped.stdin.flush()
    return piped.stdout.readline().strip()
held = open('/srv/held', 'w')
held.write('begun ')
";

#[test]
fn open_files_pipes_and_tcp_connections_go_on_on_both_sides() {
    block_on(async {
        let lab = Lab::shared().await;
        let source = lab.python().await;
        source.eval(PROGRAM).await;
        assert_eq!(source.eval("tcp('one'), pipe('one')").await, "('1 one', '0 one')");
        assert_eq!(source.sh("cat /srv/held").await, "", "the text is still in the buffer");
        let (_, children) = source.branch_into(1).await;
        for (name, guest) in [("child", &children[0]), ("source", &source)] {
            let answers = guest.eval(&format!("tcp('{name}'), pipe('{name}')")).await;
            assert_eq!(answers, format!("('2 {name}', '1 {name}')"));
            guest.eval(&format!("held.write('{name}'); held.close()")).await;
            assert_eq!(guest.sh("cat /srv/held").await, format!("begun {name}"));
            assert_eq!(guest.eval("server.poll(), piped.poll()").await, "(None, None)");
        }
    });
}
