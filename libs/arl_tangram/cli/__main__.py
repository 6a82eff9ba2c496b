from arl_tangram.cli import main

main()
