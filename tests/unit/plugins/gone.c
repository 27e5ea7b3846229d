/* A library that the plugin beside it names but cannot find when it is loaded. */
int octet_test_gone(void);
int octet_test_gone(void) { return 1; }
