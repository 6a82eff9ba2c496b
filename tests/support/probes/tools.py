"""Probes of everyday tools."""

from support.probe import Probe, bash, python, sh

_AUTHOR = "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b\n"

PROBES: tuple[Probe, ...] = (
    sh(
        "git_commits_and_diffs",
        _AUTHOR
        + """
git init -q r && cd r && echo 1 >f && git add f && git commit -qm first && echo 2 >f && git diff --stat | tail -1
git commit -qam second && git log --format=%s && git status --short && git stash list && git checkout -q -b other HEAD~1 && cat f
""",
        " 1 file changed, 1 insertion(+), 1 deletion(-)\nsecond\nfirst\n1\n",
        needs=("git",),
    ),
    sh(
        "git_clones_merges_and_applies",
        _AUTHOR
        + """
git init -q r && cd r && echo 1 >f && git add f && git commit -qm first && cd .. && git clone -q r c && cd c && echo 2 >>f && git commit -qam more
git format-patch -1 --stdout >../p && cd ../r && git am -q ../p && cat f && git worktree add -q ../w HEAD && cat ../w/f && git gc -q && git fsck
""",
        "1\n2\n1\n2\n",
        needs=("git",),
    ),
    sh(
        "git_config_of_the_user",
        "git config --global user.name probe && git config --global user.name && git config --global --unset user.name && rm -f ~/.gitconfig",
        "probe\n",
        needs=("git",),
    ),
    sh(
        "git_log_without_a_terminal_ends",
        _AUTHOR
        + """
git init -q r && cd r && for n in 1 2 3; do git commit -q --allow-empty -m $n; done; git log --oneline | wc -l; git branch | wc -l
""",
        "3\n1\n",
        needs=("git",),
    ),
    sh(
        "make_with_jobs",
        r"""
        printf 'all: a b\na b:\n\t@echo made >$@\nprint:\n\t@echo $(MAKELEVEL) $(shell echo sub)\n' >Makefile; make -s -j4; cat a b; make -s print
        """,
        "made\nmade\n0 sub\n",
        needs=("make",),
    ),
    sh(
        "archives_of_tar",
        "mkdir d; echo x >d/f; ln -s f d/l; chmod 700 d/f; tar czf a.tgz d; rm -r d; tar xzf a.tgz; cat d/l; stat -c %a d/f; tar tzf a.tgz | wc -l; tar cJf a.txz d && tar xJf a.txz && echo xz",
        "x\n700\n3\nxz\n",
        needs=("tar", "gzip", "xz"),
    ),
    sh(
        "archive_with_other_owners",
        """
        python3 -c "
        import tarfile, io
        with tarfile.open('a.tar', 'w') as a:
            i = tarfile.TarInfo('f'); i.uid = i.gid = 12345; i.size = 1; a.addfile(i, io.BytesIO(b'x'))"
        tar xf a.tar && stat -c %u f | grep -cx $(id -u)
        """.replace("\n        ", "\n"),
        "1\n",
        needs=("python3", "tar"),
    ),
    sh(
        "compression",
        "echo text >f; for c in gzip bzip2 xz; do $c -k f; done; zcat f.gz; bzcat f.bz2; xzcat f.xz; rm f; gunzip f.gz; cat f",
        "text\n" * 4,
        needs=("gzip", "bzip2", "xz"),
    ),
    sh("zip_and_unzip", "echo z >f; zip -q a.zip f; rm f; unzip -q a.zip; cat f", "z\n", needs=("zip", "unzip")),
    sh(
        "find_and_xargs",
        "mkdir -p a/b; touch a/1.txt a/b/2.txt; find . -name '*.txt' | sort; find . -name '*.txt' -print0 | xargs -0 -P 4 -n 1 basename | sort; find a -type d -exec echo {} +",
        "./a/1.txt\n./a/b/2.txt\n1.txt\n2.txt\na a/b\n",
        needs=("find", "xargs"),
    ),
    sh(
        "sed_in_place", "printf 'a\\nb\\n' >f; sed -i 's/a/c/;$d' f; cat f; sed -n '1{p;q}' f", "c\nc\n", needs=("sed",)
    ),
    sh(
        "diff_and_patch",
        "printf '1\\n2\\n' >a; printf '1\\n3\\n' >b; diff -u --label a --label b a b >p; echo $?; patch -s a p && cmp a b && echo same; cmp -s a /dev/null; echo $?",
        "1\nsame\n1\n",
        needs=("diff", "patch", "cmp"),
    ),
    sh(
        "sort_and_text_tools",
        "printf '3\\n1\\n2\\n1\\n' | sort -n | uniq -c | awk '{print $1 $2}' | paste -sd,; seq 3 | tac | head -1; printf 'a,b\\n' | cut -d, -f2 | tr b c; printf abc | rev; echo; echo x | tee f; cat f; printf ab | md5sum | cut -c1-8",
        "21,12,13\n3\nc\ncba\nx\nx\n187ef443\n",
        needs=("rev",),
    ),
    sh(
        "sort_of_a_large_file",
        "seq 300000 -1 1 >f; sort -n -S 8M -T . f | head -1; sort -n --parallel=2 f | tail -1",
        "1\n300000\n",
    ),
    sh(
        "key_of_ssh",
        "ssh-keygen -q -t ed25519 -N '' -f key && stat -c %a key && ssh-keygen -lf key.pub | grep -c ED25519",
        "600\n1\n",
        needs=("ssh-keygen",),
    ),
    sh("ssh_client_starts", "ssh -G nowhere.invalid | grep -c '^hostname nowhere.invalid'", "1\n", needs=("ssh",)),
    sh(
        "signature_of_gpg",
        """
        export GNUPGHOME=$(mktemp -d /tmp/g.XXXX); chmod 700 $GNUPGHOME
        gpg --batch --quiet --passphrase '' --quick-gen-key probe@example.invalid ed25519 2>/dev/null; echo x >f
        gpg --batch --quiet --pinentry-mode loopback --passphrase '' --yes --detach-sign f 2>/dev/null && gpg --verify f.sig f 2>&1 | grep -c 'Good signature'
        gpgconf --kill all; rm -rf $GNUPGHOME
        """,
        "1\n",
        needs=("gpg", "gpgconf"),
    ),
    sh(
        "sqlite_command",
        "echo 'create table t(x); insert into t values(1),(2); select sum(x) from t;' | sqlite3 b.db; sqlite3 b.db 'pragma integrity_check'",
        "3\nok\n",
        needs=("sqlite3",),
    ),
    sh(
        "openssl_certificate",
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 1 -subj /CN=probe 2>/dev/null && openssl x509 -noout -subject -in c; openssl rand -hex 4 | wc -c",
        "subject=CN = probe\n9\n",
        needs=("openssl",),
    ),
    python(
        "certificate_on_loopback",
        """
        import socket, ssl, subprocess, threading
        subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost".split(), check=True, stderr=-3)
        server_side, client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile="c")
        server_side.load_cert_chain("c", "k")
        server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=lambda: server_side.wrap_socket(server.accept()[0], server_side=True).sendall(b"tls")).start()
        print(client_side.wrap_socket(socket.create_connection(server.getsockname()), server_hostname="localhost").recv(9))
        """,
        "b'tls'\n",
        needs=("openssl",),
    ),
    sh(
        "jq_and_bc",
        "echo '{\"a\":[1,2]}' | jq -c .a; echo '2^70' | bc",
        "[1,2]\n1180591620717411303424\n",
        needs=("jq", "bc"),
    ),
    sh(
        "file_and_pager",
        "printf '#!/bin/sh\\n' >f; file -b f | cut -d, -f1; echo page | less; echo page | more",
        "POSIX shell script\npage\npage\n",
        needs=("file", "less", "more"),
    ),
    sh(
        "install_and_links",
        "echo x >f; install -m 750 -D f a/b/g; stat -c %a a/b/g; ln -sf g a/b/h; realpath --relative-to=. a/b/h; readlink -f a/b/h | grep -c /a/b/g; cp -r a c; rm -rf a; ls c",
        "750\na/b/g\n1\nb\n",
    ),
    sh(
        "dates_and_arithmetic",
        "date -u -d '2024-02-29 +1 year' +%F; expr 6 \\* 7; printf '%05.1f\\n' 3.14159; factor 91; seq -s, 5",
        "2025-03-01\n42\n003.1\n91: 7 13\n1,2,3,4,5\n",
    ),
    sh(
        "split_and_checksums",
        "head -c 3000 /dev/zero >f; split -b 1000 f p; ls p*; sha256sum f >s; sha256sum -c s; cat pa* | cmp - f && echo same",
        "paa\npab\npac\nprobe.sh\nf: OK\nsame\n",
    ),
    sh(
        "mktemp_and_shred",
        "f=$(mktemp); test -w $f && shred -u $f && echo shredded; d=$(mktemp -d); rmdir $d && echo gone; mktemp -u x.XXX | wc -c",
        "shredded\ngone\n6\n",
    ),
    sh(
        "env_and_stdbuf",
        "env -i A=1 /bin/sh -c 'echo $A $HOME'; env -u HOME sh -c 'echo \"[$HOME]\"'; stdbuf -oL echo line",
        "1\n[]\nline\n",
        needs=("stdbuf",),
    ),
    bash(
        "pipeline_status",
        "set -o pipefail; false | true; echo $?; true | exit 3 | true; echo ${PIPESTATUS[@]}; set +o pipefail; yes 2>/dev/null | head -n 100000 | wc -l",
        "1\n0 3 0\n100000\n",
    ),
    sh("time_of_commands", "bash -c 'TIMEFORMAT=%U; time true' 2>&1 | grep -c 0.0", "1\n", needs=("bash",)),
    sh(
        "crontab_free_waiting",
        "sleep 0.01; sleep 0 && echo slept; timeout 5 tail -f /dev/null --pid=$$ & kill $!; wait; echo done",
        "slept\ndone\n",
        needs=("tail",),
    ),
    sh("large_output", "seq 100000 | tail -1; head -c 500000 /dev/zero | tr '\\0' x | wc -c", "100000\n500000\n"),
    sh("busy_pipes_of_dd", "dd if=/dev/zero bs=1M count=50 2>/dev/null | dd bs=64k 2>/dev/null | wc -c", "52428800\n"),
    sh(
        "compiler_with_headers_and_libraries",
        """
        printf 'int f(void) { return 3; }\\n' >l.c; printf 'int f(void); #include <stdio.h>\\n' | tr -d '\\n' >/dev/null
        printf '#include <stdio.h>\\nint f(void);\\nint main(void) { printf("%%d\\\\n", f()); return 0; }\\n' >m.c
        cc -shared -fPIC -o libl.so l.c && cc -o m m.c -L. -ll -Wl,-rpath,'$ORIGIN' && ./m && cc -pipe -static -o s m.c l.c && ./s; ar rc l.a s && nm m | grep -c ' T main'
        """,
        "3\n3\n1\n",
        needs=("cc", "ar", "nm"),
    ),
    sh(
        "profile_and_coverage",
        "printf 'int main(void) { return 0; }\\n' >m.c; cc --coverage -o m m.c && ./m && ls *.gcda | wc -l; cc -pg -o g m.c && ./g; ls gmon.out",
        "1\ngmon.out\n",
        needs=("cc",),
    ),
)
