# The images of the product, made from one wheel: `make images`.
#
#   node      brokers, name servers, the command `tally`
#   operator  what looks after them in Kubernetes
#   jobs      Spark: for StoreJobs, `spark-submit --master k8s://` and Spark's operator; `tally-spark` and `tally-job`
#
# The wheel is built beforehand (`make wheel`): it holds the compiled kernel, so no compiler is needed here. Everything is
# installed in a virtual environment that the last stages copy; they run it as user 10001 and write nothing outside of
# /data and /tmp, so the root file system may be read-only. Written for any builder: no mounts, no heredocs.
# By digest: make images DOCKER_BUILD_ARGS='--build-arg BASE=python:3.11-slim-bookworm@sha256:...'
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS built
# Where pip finds packages: whatever the machine that builds is told, and no part of the images.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1
COPY dist/tallystick-*.whl dist/tallystick_client-*.whl /dist/
# The versions of all other packages, with their hashes: `make lock`.
COPY requirements/node.txt requirements/operator.txt /requirements/
RUN python3 -m venv --without-pip /opt/tallystick

FROM ${BASE} AS base
# Python's official images come without byte code of the standard library, and a pod cannot write any.
RUN python3 -m compileall -q -x 'site-packages|dist-packages|/(test|tests|idlelib|lib2to3|ensurepip|tkinter|turtledemo)/' \
        "$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && echo 'tallystick:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'tallystick:x:10001:' >> /etc/group \
 && mkdir /data && chown 10001:10001 /data
ENV PATH=/opt/tallystick/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp

FROM built AS built-node
# With what backups need: S3 and encryption. Byte code that is not compared with the times of files: nobody can change them.
RUN python3 -m pip --python /opt/tallystick/bin/python3 install --require-hashes -r /requirements/node.txt \
 && python3 -m pip --python /opt/tallystick/bin/python3 install --no-deps /dist/*.whl \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/tallystick/lib \
 && /opt/tallystick/bin/python3 -c 'import tallystick.store._kernel, tallystick.node.run'

FROM base AS node
COPY --from=built-node /opt/tallystick /opt/tallystick
EXPOSE 9876 10909 10911 10912 8080
# Kubernetes ignores it and has probes of its own. A long recovery is not a failure.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["tally"]
CMD ["run", "--dir", "/data", "--host", "0.0.0.0"]
ARG VERSION
LABEL org.opencontainers.image.title=tallystick-node \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0

FROM built AS built-operator
# Of the Kubernetes client only its connections are used: its asynchronous twin goes (35 MB), and its hundreds of models,
# which it loads when they are asked for, get no byte code.
RUN python3 -m pip --python /opt/tallystick/bin/python3 install --require-hashes -r /requirements/operator.txt \
 && python3 -m pip --python /opt/tallystick/bin/python3 install --no-deps /dist/*.whl \
 && rm -r /opt/tallystick/lib/python3*/site-packages/kubernetes/aio \
 && python3 -m compileall -q --invalidation-mode unchecked-hash -x 'kubernetes/client/(models|api)/' /opt/tallystick/lib \
 && PATH=/opt/tallystick/bin:$PATH python3 -c 'import tallystick.operator.main, kubernetes.config, kopf'

FROM base AS operator
# One heap for all threads: with one for each, reading a thousand Topics now and then took 120 MiB, so it takes 90.
ENV MALLOC_ARENA_MAX=1
COPY --from=built-operator /opt/tallystick /opt/tallystick
EXPOSE 8081
ENTRYPOINT ["tally-operator"]
ARG VERSION
LABEL org.opencontainers.image.title=tallystick-operator \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0

FROM ${BASE} AS built-java
# Of Java what Spark loads: 85 MB in place of 190.
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends openjdk-17-jdk-headless binutils \
 && jlink --output /opt/java --strip-debug --no-header-files --no-man-pages --add-modules java.se,jdk.charsets,\
jdk.crypto.ec,jdk.httpserver,jdk.incubator.vector,jdk.jfr,jdk.management,jdk.management.agent,jdk.naming.dns,jdk.net,\
jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs

FROM ${BASE} AS built-spark
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
# The versions that placement was measured with: it uses Spark's own side of the bridge to Java, in two functions.
ARG PYSPARK=4.3.0
ARG PYARROW=26.0.1
RUN python3 -m pip install --quiet --no-cache-dir --no-compile --target /opt/spark pyspark==${PYSPARK} pyarrow==${PYARROW} \
        'pandas>=2.2,<3' 'fastavro>=1.9,<2' 'protobuf>=5' 'ptars>=0.0.25,<0.1'
# Without what needs Hive, YARN, ZooKeeper or a Scala shell, without MLlib and GraphX, natives of other systems, and what
# Arrow has for its own network protocol: 250 of 520 MB remain. If too much went, the archive below cannot be made: that
# takes whole runs, also of tables and streams. Pandas is what Spark demands for functions on Arrow.
RUN cd /opt/spark/pyspark && rm -r ../bin data examples licenses && cd jars \
 && for family in spark-mllib spark-graphx spark-hive spark-yarn spark-repl hive-beeline hive-cli hive-common hive-exec \
        hive-jdbc hive-llap hive-metastore hive-serde hive-service hive-shims derby datanucleus jdo-api javax.jdo \
        breeze spire cats-kernel algebra lapack blas arpack JTransforms JLargeArrays scala-compiler jline curator \
        zookeeper connect-repl libthrift libfb303 bonecp HikariCP stax-api antlr-runtime ST4 javolution jpam opencsv; do \
        rm -rf "$family"*; \
    done \
 && rm -f netty-*-osx-* netty-*-windows-* netty-*-riscv64* \
 && python3 -c 'import sys, zipfile; \
        there = zipfile.ZipFile(sys.argv[1]); kept = zipfile.ZipFile("kept", "w", zipfile.ZIP_DEFLATED); \
        [kept.writestr(name, there.read(name)) for name in there.namelist() if not name.startswith("librocksdbjni") \
         or name in ("librocksdbjni-linux64.so", "librocksdbjni-linux-aarch64.so")]; kept.close()' rocksdbjni-*.jar \
 && mv kept "$(ls rocksdbjni-*.jar)" \
 && cd ../../pyarrow && rm -rf include tests ./*flight* ./*.pyx ./*.pxi \
 && cd .. && rm -r pandas/tests numpy/_core/include \
 && cd / && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/spark

FROM built-node AS built-jobs
ENV JAVA_HOME=/opt/java SPARK_HOME=/opt/spark
COPY --from=built-java /opt/java /opt/java
COPY --from=built-spark /opt/spark /opt/packages
# Nothing is installed any more: that is how pip says whether these are the versions that the wheel asks for. Spark's own
# folder is where its images have it.
RUN mv /opt/packages/* /opt/tallystick/lib/python3*/site-packages/ \
 && python3 -m pip --python /opt/tallystick/bin/python3 install --quiet --no-index "$(echo /dist/tallystick-*.whl)[spark,bodies]" \
 && mkdir -p /opt/spark/conf /opt/spark/work-dir && cd /opt/tallystick/lib/python3*/site-packages/pyspark \
 && mv bin jars sbin /opt/spark/ && ln -s /opt/spark/bin /opt/spark/jars /opt/spark/sbin . \
 && printf '#!/bin/sh\nexec /opt/tallystick/bin/python3 -m tallystick.spark.cluster.entrypoint "$@"\n' > /opt/entrypoint.sh \
 && chmod 755 /opt/entrypoint.sh \
 && cd / && PATH=/opt/tallystick/bin:$PATH tally-spark archive /opt/java/tallystick.jsa

FROM base AS jobs
ENV PATH=$PATH:/opt/spark/bin JAVA_HOME=/opt/java SPARK_HOME=/opt/spark SPARK_LOG_DIR=/tmp \
    PYSPARK_PYTHON=/opt/tallystick/bin/python3 PYSPARK_DRIVER_PYTHON=/opt/tallystick/bin/python3 \
    TALLYSTICK_JAVA_ARCHIVE=/opt/java/tallystick.jsa MALLOC_ARENA_MAX=2
COPY --from=built-jobs /opt/java /opt/java
COPY --from=built-jobs /opt/spark /opt/spark
COPY --from=built-jobs /opt/entrypoint.sh /opt/entrypoint.sh
COPY --from=built-jobs /opt/tallystick /opt/tallystick
EXPOSE 8080
ENTRYPOINT ["/opt/entrypoint.sh"]
ARG VERSION
LABEL org.opencontainers.image.title=tallystick-jobs \
      org.opencontainers.image.version=${VERSION} \
      org.opencontainers.image.licenses=Apache-2.0
