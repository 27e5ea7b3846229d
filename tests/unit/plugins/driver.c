/* Stands in for a driver's library where the plugin beside it is linked; where that is loaded, there is none. */
int octet_test_driver(void);
int octet_test_driver(void) { return 1; }
