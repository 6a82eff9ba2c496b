"""Probes of the runtimes of ten other languages: start, threads, children, files, text and stack depth."""

from support.probe import Probe, bash, c_program, other_language, sh

PROBES: tuple[Probe, ...] = (
    other_language(
        "node_basics",
        "main.js",
        """
        const fs = require('fs'), os = require('os'), { execFileSync } = require('child_process');
        fs.writeFileSync('f.json', JSON.stringify({ a: [1, 'é'] }));
        console.log(JSON.parse(fs.readFileSync('f.json', 'utf8')).a[1], execFileSync('echo', ['child']).toString().trim());
        console.log(os.cpus().length > 0, os.totalmem() > 1e8, typeof os.userInfo().username, os.homedir() === process.env.HOME);
        fs.mkdtempSync(os.tmpdir() + '/n'); console.log(fs.readFileSync(0, 'utf8').length);
        """,
        "node main.js",
        "é child\ntrue true string true\n0\n",
    ),
    other_language(
        "node_interfaces",
        "main.js",
        "console.log(Object.keys(require('os').networkInterfaces()).join());\n",
        "node main.js",
        "lo\n",
    ),
    other_language(
        "node_threads_and_servers",
        "main.js",
        """
        const { Worker, isMainThread, parentPort } = require('worker_threads'), http = require('http');
        if (!isMainThread) { parentPort.postMessage('thread'); return; }
        new Worker(__filename).on('message', m => { console.log(m);
          const s = http.createServer((q, r) => r.end('served')).listen(0, 'localhost', () =>
            http.get({ host: 'localhost', port: s.address().port }, r => r.on('data', d => { console.log(String(d)); s.close(); process.exit(0); })));
        });
        """,
        "node main.js",
        "thread\nserved\n",
    ),
    other_language(
        "node_stack_and_watch",
        "main.js",
        """
        let n = 0; const f = () => { n++; f(); };
        try { f(); } catch (e) { console.log(e.name, n > 5000); }
        const fs = require('fs'); const w = fs.watch('.', (e, name) => { console.log(e, name); w.close(); });
        setTimeout(() => fs.writeFileSync('seen', ''), 20);
        """,
        "node main.js",
        "RangeError true\nrename seen\n",
    ),
    other_language(
        "perl_basics",
        "main.pl",
        """
        use strict; use JSON::PP; use File::Temp; use POSIX; use Socket;
        print encode_json([1, "a"]), " ", `echo child`;
        my $pid = fork // die; exit 3 unless $pid; waitpid $pid, 0; print $? >> 8, "\\n";
        my $f = File::Temp->new; print $f "x"; print -w "$f" ? "temporary\\n" : "no\\n";
        print scalar(getpwuid($<)) ne "" ? "named\\n" : "nameless\\n"; sub d { my $n = shift; no warnings; $n ? 1 + d($n - 1) : 0 } print d(20000), "\\n";
        """,
        "perl main.pl",
        '[1,"a"] child\n3\ntemporary\nnamed\n20000\n',
    ),
    other_language(
        "java_basics",
        "Main.java",
        """
        import java.nio.file.*; import java.util.*; import java.util.concurrent.*;
        public class Main {
            static int depth(int n) { return n == 0 ? 0 : 1 + depth(n - 1); }
            public static void main(String[] a) throws Exception {
                Path p = Files.createTempFile("j", ".txt"); Files.writeString(p, "é"); System.out.println(Files.readString(p).length());
                ExecutorService e = Executors.newFixedThreadPool(20); List<Future<Integer>> f = new ArrayList<>();
                for (int i = 0; i < 100; i++) { int n = i; f.add(e.submit(() -> n)); }
                int s = 0; for (Future<Integer> x : f) s += x.get(); e.shutdown(); System.out.println(s);
                Process c = new ProcessBuilder("sh", "-c", "exit 4").start(); System.out.println(c.waitFor() + " " + depth(3000));
                System.out.println((System.getProperty("user.name").length() > 1) + " " + (Runtime.getRuntime().availableProcessors() >= 1));
            }
        }
        """,
        "java Main.java",
        "1\n4950\n4 3000\ntrue true\n",
        env={"LANG": "C.UTF-8"},
    ),
    other_language(
        "java_home_and_network",
        "Main.java",
        """
        import java.net.*; import java.util.*;
        public class Main { public static void main(String[] a) throws Exception {
            System.out.println(System.getProperty("user.home").equals(System.getenv("HOME")));
            for (NetworkInterface n : Collections.list(NetworkInterface.getNetworkInterfaces())) System.out.println(n.getName());
            ServerSocket s = new ServerSocket(0); Socket c = new Socket("localhost", s.getLocalPort()); System.out.println(s.accept() != null);
            System.out.println(InetAddress.getLocalHost().getHostName().length() > 0);
        } }
        """,
        "java Main.java",
        "true\nlo\ntrue\ntrue\n",
    ),
    other_language(
        "java_compiled_with_a_heap",
        "Main.java",
        """
        public class Main { public static void main(String[] a) { long[] x = new long[8 << 20]; x[5] = 1; System.out.println(x[5] + x.length); } }
        """,
        "javac Main.java && java -Xmx512m -Xss4m Main",
        "8388609\n",
        needs=("java",),
    ),
    sh(
        "cpp_with_threads_and_exceptions",
        """
        cat >m.cpp <<'END'
        #include <filesystem>
        #include <iostream>
        #include <stdexcept>
        #include <thread>
        #include <vector>
        #include <atomic>
        int main() {
            std::atomic<int> n{0}; std::vector<std::thread> t; for (int i = 0; i < 30; i++) t.emplace_back([&] { n++; }); for (auto &x : t) x.join();
            try { throw std::runtime_error("caught"); } catch (std::exception &e) { std::cout << n << ' ' << e.what() << '\\n'; }
            std::filesystem::create_directories("a/b"); std::cout << std::filesystem::exists("a/b") << ' ' << (std::thread::hardware_concurrency() > 0) << '\\n';
        }
        END
        g++ -std=c++17 -O1 -pthread m.cpp -o m && ./m
        """.replace("\n        ", "\n"),
        "30 caught\n1 1\n",
        needs=("g++",),
    ),
    c_program(
        "c_with_locale_and_user",
        """
        #include <locale.h>
        #include <pwd.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <unistd.h>
        int main(void) {
            struct passwd *user = getpwuid(getuid());
            char name[] = "/tmp/c-XXXXXX";
            int file = mkstemp(name);
            printf("%d %d %d\\n", user != 0, setlocale(LC_ALL, "C.UTF-8") != 0, file > 2); unlink(name);
            printf("%d %d\\n", system("exit 6") >> 8, tmpfile() != 0);
        }
        """,
        "1 1 1\n6 1\n",
    ),
    sh(
        "go_basics",
        """
        cat >main.go <<'END'
        package main
        import ("encoding/json"; "fmt"; "net"; "os"; "os/exec"; "os/user"; "sync")
        func depth(n int) int { if n == 0 { return 0 }; return 1 + depth(n-1) }
        func main() {
            b, _ := json.Marshal(map[string]int{"a": 1}); o, _ := exec.Command("echo", "child").Output(); fmt.Print(string(b), " ", string(o))
            var w sync.WaitGroup; n, m := 0, sync.Mutex{}
            for i := 0; i < 1000; i++ { w.Add(1); go func() { m.Lock(); n++; m.Unlock(); w.Done() }() }; w.Wait(); fmt.Println(n, depth(1000000))
            u, err := user.Current(); f, _ := os.CreateTemp("", "go"); i, _ := net.Interfaces(); fmt.Println(err == nil && u.Username != "", f != nil, len(i))
            l, e := net.Listen("tcp", "localhost:0"); fmt.Println(e == nil && l != nil)
        }
        END
        GOFLAGS=-mod=mod GO111MODULE=off go run main.go
        """.replace("\n        ", "\n"),
        '{"a":1} child\n1000 1000000\ntrue true 1\ntrue\n',
        needs=("go",),
    ),
    other_language(
        "ruby_basics",
        "main.rb",
        """
        require 'json'; require 'tempfile'; require 'socket'; require 'etc'
        puts JSON.generate([1, 'é']), `echo child`, 10.times.map { |n| Thread.new { n } }.sum(&:value)
        Tempfile.create { |f| f.write('x'); puts File.writable?(f.path) }; pid = fork { exit 5 }; Process.wait(pid); puts $?.exitstatus
        puts Etc.getpwuid.name.size > 0, Encoding.default_external, Socket.getifaddrs.map(&:name).uniq.join
        def d(n) n == 0 ? 0 : 1 + d(n - 1) end; puts d(5000), STDIN.read.size
        """,
        "ruby main.rb",
        '[1,"é"]\nchild\n45\ntrue\n5\ntrue\nUTF-8\nlo\n5000\n0\n',
        env={"LANG": "C.UTF-8"},
    ),
    sh(
        "lua_basics",
        """
        cat >main.lua <<'END'
        local f = io.open(os.tmpname(), 'w'); f:write('x'); f:close()
        print(io.popen('echo child'):read('a'):gsub('%s', ''), os.getenv('HOME') ~= nil, utf8.len('é'), #io.read('a'))
        local function d(n) if n == 0 then return 0 end return 1 + d(n - 1) end print(d(100000), select(3, os.execute('exit 3')))
        END
        lua5.4 main.lua
        """.replace("\n        ", "\n"),
        "child\ttrue\t1\t0\n100000\t3\n",
        needs=("lua5.4",),
    ),
    sh(
        "rust_basics",
        """
        cat >main.rs <<'END'
        use std::{env, fs, process::Command, thread, net::TcpListener};
        fn main() {
            let t: Vec<_> = (0..20).map(|n| thread::spawn(move || n)).collect(); println!("{}", t.into_iter().map(|t| t.join().unwrap()).sum::<i32>());
            println!("{}", String::from_utf8(Command::new("echo").arg("child").output().unwrap().stdout).unwrap().trim());
            fs::write(env::temp_dir().join("rust-probe"), "x").unwrap(); println!("{} {}", thread::available_parallelism().unwrap().get() > 0, TcpListener::bind("localhost:0").is_ok());
        }
        END
        rustc -O main.rs && ./main
        """.replace("\n        ", "\n"),
        "190\nchild\ntrue true\n",
        needs=("rustc",),
    ),
    other_language(
        "php_basics",
        "main.php",
        """
        <?php echo json_encode([1, 'a']), ' ', shell_exec('echo child'); file_put_contents(tempnam(sys_get_temp_dir(), 'p'), 'x');
        echo strlen(stream_get_contents(STDIN)), ' ', get_current_user() !== '', "\\n"; function d($n) { return $n ? 1 + d($n - 1) : 0; } echo d(20000), "\\n";
        """.lstrip(),
        "php main.php",
        '[1,"a"] child\n0 1\n20000\n',
    ),
    sh(
        "awk_basics",
        r"""
        printf 'a 1\nb 2\n' | awk '{ s += $2; "echo child" | getline x; print $1 > "/dev/stdout" } END { print s, x, ENVIRON["HOME"] != "", system("exit 3") }'
        """,
        "a\nb\n3 child 1 3\n",
        needs=("awk",),
    ),
    bash(
        "bash_features",
        """
        declare -A m=([k]=v); echo ${m[k]} ${#m[@]} $((2**40)) ${BASH_VERSINFO[0]} | sed 's/[0-9]$/N/'
        coproc cat; echo coprocess >&${COPROC[1]}; exec {COPROC[1]}>&-; read -r line <&${COPROC[0]}; echo $line
        shopt -s globstar extglob
        mkdir -p a/b; touch a/b/c; echo **/c; echo !(b|probe.sh); read -t 1 x <<<'here string'; echo $x; echo x{1..3}
        f() { [[ $1 -eq 0 ]] && echo 0 && return; f $(($1 - 1)); }; f 2000; mapfile -t lines < <(printf '1\\n2\\n'); echo ${#lines[@]}
        """,
        "v 1 1099511627776 N\ncoprocess\na/b/c\na\nhere string\nx1 x2 x3\n0\n2\n",
    ),
    sh(
        "here_documents",
        """
        x=5; cat <<END
        value $x $(echo command)
        END
        cat <<'END' | tr a-z A-Z
        raw $x
        END
        """.replace("\n        ", "\n"),
        "value 5 command\nRAW $X\n",
    ),
)
